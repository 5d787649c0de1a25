"""Floats of 16 bits, which kernels hold as bits and compute with in float32.

C has no type for both that every compiler vectorises, but it vectorises these conversions: shifts,
and an addition that lets the processor round denormals.  None of them makes a float32 denormal,
which is 0 while programs run.
"""

from __future__ import annotations

import numpy as np

from minigraph.graph import BFLOAT16, DType, Graph, Node
from minigraph.ops.reduction import Reduction

FLOAT16, FLOAT32, FLOAT64 = map(np.dtype, ("float16", "float32", "float64"))
SMALL_FLOATS = frozenset((FLOAT16, BFLOAT16))

_BITS = """
static inline uint32_t mg_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}"""
_NUMBER = """
static inline float mg_number(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}"""
# A denormal m is read as 2**-14 + m, the next larger exponent's, less 2**-14.
_FLOAT_OF_FLOAT16 = """
static inline float mg_float_of_float16(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000u) << 16, m = (uint32_t)(x & 0x7fffu) << 13;
  const uint32_t normal = m + (m >= 0x0f800000u ? 0x70000000u : 0x38000000u);
  const uint32_t small = mg_bits(mg_number(m + 0x38800000u) - 0x1p-14f);
  return mg_number(sign | (m < 0x00800000u ? small : normal));
}"""
# To the nearest, the even one of two: a carry goes into the exponent, and on to infinity.  In
# x + 0.5 the last bit is the last one of a denormal.
_FLOAT16_OF_FLOAT = """
static inline uint16_t mg_float16_of_float(float x) {
  const uint32_t sign = mg_bits(x) >> 16 & 0x8000u, m = mg_bits(x) & 0x7fffffffu;
  const uint32_t normal = (m - 0x38000000u + 0xfffu + (m >> 13 & 1)) >> 13;
  const uint32_t small = mg_bits(mg_number(m) + 0.5f) - 0x3f000000u;
  const uint32_t large = m > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return sign | (m >= 0x47800000u ? large : m < 0x38800000u ? small : normal);
}"""
# Rounding twice goes wrong where the first one hides on which side of the middle the number is; a
# last bit that is 1 for all inexact ones shows it (Boldo and Melquiond, 2008).
_FLOAT16_OF_DOUBLE = """
static inline uint16_t mg_float16_of_double(double x) {
  const float near = (float)x;
  const uint32_t odd = (mg_bits(near) - (fabs((double)near) > fabs(x))) | 1;
  return mg_float16_of_float((double)near == x ? near : mg_number(odd));
}"""
_FLOAT_OF_BFLOAT16 = """
static inline float mg_float_of_bfloat16(uint32_t x) { return mg_number(x << 16); }"""
_BFLOAT16_OF_FLOAT = """
static inline uint32_t mg_bfloat16_of_float(float x) {
  const uint32_t b = mg_bits(x), high = b >> 16;
  return x != x ? high | 0x40u : (b + 0x7fffu + (high & 1)) >> 16;
}"""
# Of a number that is a bfloat16: it keeps NaN's bits and denormals.
_BFLOAT16_AS_IT_IS = """
static inline uint32_t mg_bfloat16_as_it_is(float x) { return mg_bits(x) >> 16; }"""
AS_IT_IS = "mg_bfloat16_as_it_is", (_BITS.strip(), _BFLOAT16_AS_IT_IS.strip())

# From which type to which: the name of the C function, and the text that it takes.
CONVERSIONS: dict[tuple[DType, DType], tuple[str, tuple[str, ...]]] = {
    (FLOAT16, FLOAT32): ("mg_float_of_float16", (_BITS, _NUMBER, _FLOAT_OF_FLOAT16)),
    (FLOAT32, FLOAT16): ("mg_float16_of_float", (_BITS, _NUMBER, _FLOAT16_OF_FLOAT)),
    (FLOAT64, FLOAT16): (
        "mg_float16_of_double",
        (_BITS, _NUMBER, _FLOAT16_OF_FLOAT, _FLOAT16_OF_DOUBLE),
    ),
    (BFLOAT16, FLOAT32): ("mg_float_of_bfloat16", (_NUMBER, _FLOAT_OF_BFLOAT16)),
    (FLOAT32, BFLOAT16): ("mg_bfloat16_of_float", (_BITS, _BFLOAT16_OF_FLOAT)),
}


def working(dtype: DType) -> DType:
    """Return the type that C computes with for elements of `dtype`."""
    return FLOAT32 if dtype in SMALL_FLOATS else dtype


def conversion(source: DType, target: DType) -> tuple[str, tuple[str, ...]]:
    """Return the C function between a small float and another type, and the text it takes.

    Integers go by way of float32, and so do doubles to bfloat16, as in NumPy.
    """
    if target in SMALL_FLOATS and (source, target) not in CONVERSIONS:
        source = FLOAT32
    name, text = CONVERSIONS[source, target]
    return name, tuple(part.strip() for part in text)


def rounding(dtype: DType) -> tuple[str, tuple[str, ...]]:
    """Return the C function that rounds a float32 to a small float, and the text it takes."""
    (to, narrowing), (back, widening) = conversion(FLOAT32, dtype), conversion(dtype, FLOAT32)
    name = f"mg_round_{dtype.name}"
    text = f"static inline float {name}(float x) {{ return {back}({to}(x)); }}"
    return name, tuple(dict.fromkeys((*narrowing, *widening, text)))


def widen_reductions(graph: Graph) -> Graph:
    """Return the graph with reductions of small floats done in float32, and rounded then."""

    def widened(node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node.op, Reduction) and inputs[0].dtype in SMALL_FLOATS:
            (x,) = inputs
            return node.op(x.astype(FLOAT32)).astype(node.dtype)
        return node.replace(inputs)

    return graph.map(widened)

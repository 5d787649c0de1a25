"""Floats of 16 bits: kernels store their bits and compute in float32.

C has no types for float16 and bfloat16 that all compilers vectorise, but compilers vectorise these
conversions: shifts, and an addition that rounds denormals.  No intermediate result is a denormal
float32, because programs flush denormals to 0.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np

from minigraph.graph import BFLOAT16, DType, Graph, Node
from minigraph.ops.reduction import Reduction

FLOAT16, FLOAT32, FLOAT64 = map(np.dtype, ("float16", "float32", "float64"))
SMALL_FLOATS = frozenset((FLOAT16, BFLOAT16))

# The texts of C functions by name, each after the functions that it calls.
_FUNCTIONS = {
    re.findall(r"\bmg_\w+", text)[0]: text
    for part in Path(__file__).with_suffix(".c").read_text().split("\n\n")
    if (text := re.sub(r"/\*.*?\*/\n?", "", part, flags=re.DOTALL).strip())
}

# The C functions for casts.
CONVERSIONS: dict[tuple[DType, DType], str] = {
    (FLOAT16, FLOAT32): "mg_float_of_float16",
    (FLOAT32, FLOAT16): "mg_float16_of_float",
    (FLOAT64, FLOAT16): "mg_float16_of_double",
    (BFLOAT16, FLOAT32): "mg_float_of_bfloat16",
    (FLOAT32, BFLOAT16): "mg_bfloat16_of_float",
}
CFunction = tuple[str, tuple[str, ...]]  # name, and its text after those of functions that it calls


@functools.cache
def _function(name: str) -> CFunction:
    names = {name}
    for function, text in reversed(_FUNCTIONS.items()):
        if function in names:
            names.update(re.findall(r"\bmg_\w+", text))
    return name, tuple(text for function, text in _FUNCTIONS.items() if function in names)


# The conversion of a float32 that bfloat16 can represent.
EXACT_TO_BFLOAT16 = _function("mg_bfloat16_of_exact_float")


def compute_dtype(dtype: DType) -> DType:
    """Return the dtype in which C computes elements of `dtype`."""
    return FLOAT32 if dtype in SMALL_FLOATS else dtype


def conversion(source: DType, target: DType) -> CFunction:
    """Return the C function for a cast from or to a float of 16 bits; ("", ()) for other casts.

    As in NumPy, integers are cast to float32 first, and so is float64 for a cast to bfloat16.
    """
    if source == target or SMALL_FLOATS.isdisjoint((source, target)):
        return "", ()
    if target in SMALL_FLOATS and (source, target) not in CONVERSIONS:
        source = FLOAT32
    return _function(CONVERSIONS[source, target])


def conversions(dtype: DType) -> tuple[str, str, tuple[str, ...]]:
    """Return the C functions from a 16-bit float to float32 and back, and their texts."""
    load, load_texts = conversion(dtype, FLOAT32)
    store, store_texts = conversion(FLOAT32, dtype)
    return load, store, tuple(dict.fromkeys((*load_texts, *store_texts)))


def rounding(dtype: DType) -> CFunction:
    """Return the C function that rounds a float32 to the precision of a float of 16 bits."""
    return _function(f"mg_round_{dtype.name}")


def widen_reductions(graph: Graph) -> Graph:
    """Return the graph with reductions of 16-bit floats computed in float32, rounded at the end."""

    def rewrite(node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node.op, Reduction) and inputs[0].dtype in SMALL_FLOATS:
            return node.op(inputs[0].astype(FLOAT32)).astype(node.dtype)
        return node.replace(inputs)

    return graph.map(rewrite)

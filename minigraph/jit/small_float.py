"""Floats of 16 bits, which kernels hold as bits and compute with in float32.

C has no type for both that every compiler vectorises, but it vectorises these conversions: shifts,
and an addition that lets the processor round denormals.  None of them makes a float32 denormal,
which is 0 while programs run.
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

# The C functions by name: each with its text, behind those that it calls.
_FUNCTIONS = {
    re.findall(r"\bmg_\w+", text)[0]: text
    for part in Path(__file__).with_suffix(".c").read_text().split("\n\n")
    if (text := re.sub(r"/\*.*?\*/\n?", "", part, flags=re.DOTALL).strip())
}

# The C function from one type to another.
CONVERSIONS: dict[tuple[DType, DType], str] = {
    (FLOAT16, FLOAT32): "mg_float_of_float16",
    (FLOAT32, FLOAT16): "mg_float16_of_float",
    (FLOAT64, FLOAT16): "mg_float16_of_double",
    (BFLOAT16, FLOAT32): "mg_float_of_bfloat16",
    (FLOAT32, BFLOAT16): "mg_bfloat16_of_float",
}
CFunction = tuple[str, tuple[str, ...]]  # its name, and its text behind what it calls


@functools.cache
def _function(name: str) -> CFunction:
    needed = {name}
    for each, text in reversed(_FUNCTIONS.items()):
        if each in needed:
            needed.update(re.findall(r"\bmg_\w+", text))
    return name, tuple(text for each, text in _FUNCTIONS.items() if each in needed)


AS_IT_IS = _function("mg_bfloat16_as_it_is")  # of a float32 that is a bfloat16


def working(dtype: DType) -> DType:
    """Return the type that C computes with for elements of `dtype`."""
    return FLOAT32 if dtype in SMALL_FLOATS else dtype


def conversion(source: DType, target: DType) -> CFunction:
    """Return the C function between a small float and another type.

    Integers go by way of float32, and so do doubles to bfloat16, as in NumPy.
    """
    if target in SMALL_FLOATS and (source, target) not in CONVERSIONS:
        source = FLOAT32
    return _function(CONVERSIONS[source, target])


def rounding(dtype: DType) -> CFunction:
    """Return the C function that rounds a float32 to a small float."""
    return _function(f"mg_round_{dtype.name}")


def widen_reductions(graph: Graph) -> Graph:
    """Return the graph with reductions of small floats done in float32, and rounded then."""

    def widened(node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node.op, Reduction) and inputs[0].dtype in SMALL_FLOATS:
            (x,) = inputs
            return node.op(x.astype(FLOAT32)).astype(node.dtype)
        return node.replace(inputs)

    return graph.map(widened)

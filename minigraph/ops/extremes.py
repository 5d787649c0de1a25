"""The larger and the smaller of two elements, and elements kept within bounds."""

from __future__ import annotations

import numpy as np

from minigraph.errors import DTypeError
from minigraph.graph import BOOL, Array, Node, Operand, builder, limits
from minigraph.ops.comparison import where
from minigraph.ops.elementwise import Elementwise, kind, promote


class Maximum(Elementwise):
    """The larger of x and y; NaN if one is.

    >>> cg.compile([], ops.maximum([1, 5], 3))()
    array([3, 5])
    """

    c = "({0} > {1} || {0} != {0} ? {0} : {1})"
    accepts = "fiub"
    forward = np.maximum

    def grad(self, dy: Node, z: Node, x: Node, y: Node) -> tuple[Node, Node]:
        return _gradient_of_larger(dy, x, y), _gradient_of_larger(dy, y, x)


class Minimum(Elementwise):
    """The smaller of x and y; NaN if one is.

    >>> cg.compile([], ops.minimum([1, 5], 3))()
    array([1, 3])
    """

    c = "({0} < {1} || {0} != {0} ? {0} : {1})"
    accepts = "fiub"
    forward = np.minimum

    def grad(self, dy: Node, z: Node, x: Node, y: Node) -> tuple[Node, Node]:
        return _gradient_of_larger(dy, y, x), _gradient_of_larger(dy, x, y)


def _gradient_of_larger(dy: Node, x: Node, y: Node) -> Node:
    """The gradient of max(x, y) for x; equals share it, as in PyTorch."""
    return where(x > y, dy, where(x < y, 0, dy * 0.5))


class Clip(Elementwise):
    """min(max(x, low), high); NaN if one is."""

    c = "mg_clip_{T}({0}, {1}, {2})"
    support = support_int = """
static inline {T} mg_clip_{T}({T} x, {T} low, {T} high) {{
  {T} y = x < low || low != low ? low : x;
  return y > high || high != high ? high : y;
}}"""

    def forward(self, x: Array, low: Array, high: Array) -> Array:
        return np.minimum(np.maximum(x, low), high)

    def grad(self, dy: Node, y: Node, x: Node, low: Node, high: Node) -> tuple[Node, Node, Node]:
        inside = (x >= low) & (x <= high)
        below = (x < low) & (low <= high)
        above = (x > high) | (low > high)
        return where(inside, dy, 0), where(below, dy, 0), where(above, dy, 0)


@builder
def clip(x: Operand, min: Operand | None = None, max: Operand | None = None) -> Node:
    """Return x limited to the interval from `min` to `max`; None leaves a side open.

    So does a number that is beyond all that the dtype of x holds.

    >>> cg.compile([], ops.clip([-1.0, 0.5, 2.0], 0, 1))()
    array([0. , 0.5, 1. ])
    """
    (x,) = promote(x)
    if x.dtype == BOOL:
        raise DTypeError("clip takes numbers, not bool")
    least, most = limits(x.dtype)
    low, high = (-np.inf, np.inf) if kind(x.dtype) == "f" else (least, most)
    if min is None or (isinstance(min, int | float) and min < least):
        min = low
    if max is None or (isinstance(max, int | float) and max > most):
        max = high
    return Clip()(*promote(x, min, max))

"""Comparisons, logic, choice, and the larger or smaller of two elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import (
    BOOL,
    Array,
    Node,
    Operand,
    Spec,
    Tensor,
    builder,
    gradients,
    limits,
    zero_gradient,
)
from minigraph.ops.elementwise import Elementwise, broadcast_shapes, kind, promote


class Comparison(Elementwise):
    """An elementwise op whose result is bool."""

    accepts = "fiub"
    result = BOOL
    grad = zero_gradient


class Equality(Comparison):
    """Whether elements are equal, or are not."""

    def infer(self, *xs: Any, **kwargs: Any) -> Spec:
        try:
            return super().infer(*xs)
        except ShapeError as error:
            raise ShapeError(f"{error}; expressions themselves are compared by `is`") from None


class Bitwise(Elementwise):
    """An elementwise op on the bits of integers, or on bools."""

    accepts = "iub"
    grad = zero_gradient


class Equal(Equality):
    """x == y."""

    example = "[1, 2], 2", "array([False,  True])"
    c = "{0} == {1}"
    commutative = True


class NotEqual(Equality):
    """x != y."""

    example = "[1, 2], 2", "array([ True, False])"
    c = "{0} != {1}"
    commutative = True


class Less(Comparison):
    """x < y."""

    example = "[1, 2, 3], 2", "array([ True, False, False])"
    c = "{0} < {1}"


class LessEqual(Comparison):
    """x <= y."""

    example = "[1, 2, 3], 2", "array([ True,  True, False])"
    c = "{0} <= {1}"


class Greater(Comparison):
    """x > y."""

    example = "[1, 2, 3], 2", "array([False, False,  True])"
    c = "{0} > {1}"


class GreaterEqual(Comparison):
    """x >= y."""

    example = "[1, 2, 3], 2", "array([False,  True,  True])"
    c = "{0} >= {1}"


class LogicalAnd(Comparison):
    """Whether both are true; numbers are true where they are not 0."""

    example = "[True, True], [True, False]", "array([ True, False])"
    c = "({0} != 0) & ({1} != 0)"
    commutative = True


class LogicalOr(Comparison):
    """Whether one is true; numbers are true where they are not 0."""

    example = "[True, False], [False, False]", "array([ True, False])"
    c = "({0} != 0) | ({1} != 0)"
    commutative = True


class LogicalXor(Comparison):
    """Whether exactly one is true; numbers are true where they are not 0."""

    example = "[True, True], [True, False]", "array([False,  True])"
    c = "({0} != 0) != ({1} != 0)"
    commutative = True


class LogicalNot(Comparison):
    """Whether x is false, that is 0."""

    example = "[True, False]", "array([False,  True])"
    c = "{0} == 0"


class Isnan(Comparison):
    """Whether x is not a number."""

    example = "[1.0, np.inf, np.nan]", "array([False, False,  True])"
    c = "{0} != {0}"


class Isinf(Comparison):
    """Whether x is an infinity."""

    example = "[1.0, np.inf, np.nan]", "array([False,  True, False])"
    c = "({0} - {0} != {0} - {0}) & ({0} == {0})"
    c_int = "({0}, 0)"


class Isfinite(Comparison):
    """Whether x is neither infinite nor NaN."""

    example = "[1.0, np.inf, np.nan]", "array([ True, False, False])"
    c = "{0} - {0} == {0} - {0}"


class Signbit(Comparison):
    """Whether x is negative or -0.0; False for NaN, because its sign is undefined."""

    example = "[-0.0, 1.0]", "array([ True, False])"
    c = "({0} == {0}) & (copysign{f}(1, {0}) < 0)"
    accepts = "f"

    def forward(self, x: Array) -> Array:
        return np.signbit(x) & ~np.isnan(x)


class BitwiseAnd(Bitwise):
    """x & y."""

    example = "[6, 5], 3", "array([2, 1])"
    c = "{0} & {1}"
    commutative = True


class BitwiseOr(Bitwise):
    """x | y."""

    example = "[6, 5], 3", "array([7, 7])"
    c = "{0} | {1}"
    commutative = True


class BitwiseXor(Bitwise):
    """x ^ y."""

    example = "[6, 5], 3", "array([5, 6])"
    c = "{0} ^ {1}"
    commutative = True


class BitwiseInvert(Bitwise):
    """~x."""

    example = "[0, 5]", "array([-1, -6])"
    c = "({T})~{0}"
    c_bool = "!{0}"


class BitwiseLeftShift(Bitwise):
    """x << y; 0 where y is negative or no less than the number of bits."""

    example = "[1, 3], 2", "array([ 4, 12])"
    c = "((uint64_t){1} < 8 * sizeof({T}) ? ({T})((uint64_t){0} << {1}) : 0)"
    accepts = "iu"


class BitwiseRightShift(Bitwise):
    """x >> y, with the sign of x; 0 or -1, by that sign, where y is negative or too large."""

    example = "[8, 5], 1", "array([4, 2])"
    c = "((uint64_t){1} < 8 * sizeof({T}) ? ({T})({0} >> {1}) : ({T})-({0} < 0))"
    accepts = "iu"


class Where(Elementwise):
    """x where the condition holds, else y."""

    c = "({0} ? {1} : {2})"
    exact = True
    accepts = "fiub"

    def infer(self, condition: Spec, x: Spec, y: Spec) -> Spec:
        if condition.dtype != BOOL:
            raise DTypeError(f"the condition has dtype {condition.dtype.name}, not bool")
        if x.dtype != y.dtype:
            raise DTypeError(f"the choices have dtypes {x.dtype.name} and {y.dtype.name}")
        return Spec(broadcast_shapes(condition.shape, x.shape, y.shape), x.dtype)

    def forward(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, x, y)

    def grad(self, dy: Node, z: Node, condition: Node, x: Node, y: Node) -> Any:
        return None, where(condition, dy, 0), where(condition, 0, dy)


@builder
def where(condition: Tensor, x: Operand, y: Operand) -> Node:
    """Return x where the bool `condition` holds, else y; all three broadcast.

    >>> cg.compile([], ops.where([True, False], 1.0, [2.0, 3.0]))()
    array([1., 3.])
    """
    return Where()(condition, *promote(x, y))


class Maximum(Elementwise):
    """The larger of x and y; NaN if one is."""

    example = "[1, 5], 3", "array([3, 5])"
    c = "({0} <= {1} || {1} != {1} ? {1} : {0})"
    exact = True
    accepts = "fiub"
    grad = gradients(lambda dy, z, x, y: (_where_larger(dy, x, y), _where_larger(dy, y, x)))


class Minimum(Elementwise):
    """The smaller of x and y; NaN if one is."""

    example = "[1, 5], 3", "array([1, 3])"
    c = "({0} >= {1} || {1} != {1} ? {1} : {0})"
    exact = True
    accepts = "fiub"
    grad = gradients(lambda dy, z, x, y: (_where_larger(dy, y, x), _where_larger(dy, x, y)))


def _where_larger(dy: Node, x: Node, y: Node) -> Node:
    """Return the gradient of max(x, y) for x; equal elements share it, as in PyTorch."""
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
def clip(x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Node:
    """Return x limited to the interval from `min` to `max`; None leaves a side open.

    A number beyond the range of the dtype of x leaves the side open, too.

    >>> cg.compile([], ops.clip([-1.0, 0.5, 2.0], 0, 1))()
    array([0. , 0.5, 1. ])
    """
    if x.dtype == BOOL:
        raise DTypeError("clip takes numbers, not bool")
    lowest, highest = limits(x.dtype)
    low, high = (-np.inf, np.inf) if kind(x.dtype) == "f" else (lowest, highest)
    if min is None or (isinstance(min, int | float) and min < lowest):
        min = low
    if max is None or (isinstance(max, int | float) and max > highest):
        max = high
    return Clip()(*promote(x, min, max))

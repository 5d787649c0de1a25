"""Sums and products of each element and all before it, along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigraph.arguments import Axis
from minigraph.errors import ShapeError
from minigraph.graph import Array, DTypeLike, Node, Op, Spec, Tensor, builder
from minigraph.ops.creation import full
from minigraph.ops.elementwise import kind, widen
from minigraph.ops.joining import moveaxis
from minigraph.ops.padding import pad
from minigraph.ops.reduction import Sum
from minigraph.ops.scan import scan
from minigraph.ops.shape import Alike, normalize_axis, reshape
from minigraph.ops.slicing import Pad, getitem
from minigraph.symbolic import positive_part


class CumulativeSum(Alike):
    """The sum of each element and all before it along `axis`; floats are added up in float64.

    reverse  whether sums are of each element and all after it
    """

    axis: int
    reverse: bool = False

    def forward(self, x: Array) -> Array:
        wide = x.astype(np.float64) if kind(x.dtype) == "f" else x
        if not self.reverse:
            return np.cumsum(wide, self.axis, wide.dtype).astype(x.dtype)
        backwards = np.cumsum(np.flip(wide, self.axis), self.axis, wide.dtype)
        return np.flip(backwards, self.axis).astype(x.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (CumulativeSum(self.axis, not self.reverse)(dy),)


class CumulativeProduct(Alike):
    """The product of each element and all before it along `axis`; of floats, in float64."""

    axis: int

    def forward(self, x: Array) -> Array:
        wide = x.astype(np.float64) if kind(x.dtype) == "f" else x
        return np.cumprod(wide, self.axis, wide.dtype).astype(x.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        # y holds the products before each element, so nothing is divided by x.
        later = Recurrence(self.axis, True)(widen(dy), widen(x))
        return ((later * _previous(widen(y), self.axis, 1)).astype(x.dtype),)

    def expand(self, x: Node) -> tuple[Node]:
        return (_by_scan(lambda before, rows: (before * rows[0],) * 2, 1, self.axis, False, x),)


class Recurrence(Op):
    """y[i] = x[i] + factor[i] * y[i - 1] along `axis`, from y[0] = x[0] on; computed in float64.

    reverse  y[i] = x[i] + factor[i + 1] * y[i + 1], from the last element on
    """

    axis: int
    reverse: bool = False

    def infer(self, x: Spec, factor: Spec) -> Spec:
        if x != factor or kind(x.dtype) != "f":
            raise ShapeError(f"x is {x}, factor is {factor}; both are floats of one shape")
        return x

    def forward(self, x: Array, factor: Array) -> Array:
        y, f = (np.moveaxis(v.astype(np.float64), self.axis, 0) for v in (x, factor))
        for i in range(len(y) - 2, -1, -1) if self.reverse else range(1, len(y)):
            y[i] += f[i + 1] * y[i + 1] if self.reverse else f[i] * y[i - 1]
        return np.moveaxis(y, 0, self.axis).astype(x.dtype)

    def expand(self, x: Node, factor: Node) -> tuple[Node]:
        def join(carry: Node, rows: Sequence[Node]) -> tuple[Node, Node]:
            y = rows[0] + (carry if self.reverse else rows[1] * carry)
            return (rows[1] * y if self.reverse else y), y

        return (_by_scan(join, 0, self.axis, self.reverse, x, factor),)

    def grad(self, dy: Node, y: Node, x: Node, factor: Node) -> tuple[Node, Node]:
        dx = Recurrence(self.axis, not self.reverse)(dy, factor)
        first, second = (y, dx) if not self.reverse else (dx, y)
        return dx, _previous(first, self.axis, 0) * second


def _previous(x: Node, axis: int, value: float) -> Node:
    """Return x shifted by one element along an axis, with `value` in front."""
    size = positive_part(x.shape[axis] - 1)  # an empty axis stays empty
    low = tuple((n - size) * (a == axis) for a, n in enumerate(x.shape))
    none = (0,) * x.ndim
    return Pad(low, none, none, value)(getitem(x, (*(slice(None),) * axis, slice(size))))


def _by_scan(join: Callable[..., Any], first: float, axis: int, reverse: bool, *xs: Node) -> Node:
    """Return the running results of `join` along an axis, starting from `first`."""
    wide = "float64" if kind(xs[0].dtype) == "f" else xs[0].dtype
    rows = [moveaxis(x.astype(wide), axis, 0) for x in xs]
    _, ys = scan(join, full(rows[0].shape[1:], first, wide), rows, reverse=reverse)
    return moveaxis(ys, 0, axis).astype(xs[0].dtype)


def _cumulate(x: Tensor, axis: Axis | None, dtype: DTypeLike | None, product: bool) -> Node:
    """Return cumulative sums or products along `axis`; None: of x flattened."""
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    axis = normalize_axis(axis, x.ndim)
    x = x.astype(Sum((axis,)).result(x.dtype) if dtype is None else dtype)
    return CumulativeProduct(axis)(x) if product else CumulativeSum(axis)(x)


@builder
def cumsum(x: Tensor, axis: Axis | None = None, dtype: DTypeLike | None = None) -> Node:
    """Return the sums of each element and all before it along `axis`; None: of x flattened.

    >>> cg.compile([], ops.cumsum([1, 2, 3]))()
    array([1, 3, 6])
    """
    return _cumulate(x, axis, dtype, product=False)


@builder
def cumprod(x: Tensor, axis: Axis | None = None, dtype: DTypeLike | None = None) -> Node:
    """Return the products of each element and all before it along `axis`; None: of x flattened.

    >>> cg.compile([], ops.cumprod([1, 2, 3]))()
    array([1, 2, 6])
    """
    return _cumulate(x, axis, dtype, product=True)


@builder
def cumulative_sum(
    x: Tensor,
    axis: Axis | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Node:
    """Return the sums of each element and all before it along `axis`, which only a vector may omit.

    With `include_initial` a 0 comes first.

    >>> cg.compile([], ops.cumulative_sum([1, 2, 3], include_initial=True))()
    array([0, 1, 3, 6])
    """
    return _with_initial(x, axis, dtype, include_initial, product=False)


@builder
def cumulative_prod(
    x: Tensor,
    axis: Axis | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Node:
    """Return the products of each element and all before it along `axis`, as `cumulative_sum`.

    With `include_initial` a 1 comes first.

    >>> cg.compile([], ops.cumulative_prod([1, 2, 3]))()
    array([1, 2, 6])
    """
    return _with_initial(x, axis, dtype, include_initial, product=True)


def _with_initial(
    x: Tensor, axis: Axis | None, dtype: DTypeLike | None, include_initial: bool, product: bool
) -> Node:
    if axis is None and x.ndim != 1:
        raise ShapeError(f"axis is None; shape {x.shape} needs one")
    y = _cumulate(x, axis, dtype, product)
    if not include_initial:
        return y
    axis = normalize_axis(axis or 0, y.ndim)
    widths = tuple((int(a == axis), 0) for a in range(y.ndim))
    return pad(y, widths, int(product))

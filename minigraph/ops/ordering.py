"""Ops that compare the elements of a row: sorting, the k largest, and positions in sorted rows.

NaN is larger than any number, and -0 equals 0.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import numpy as np

from minigraph.arguments import Axis, Size
from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import (
    Array,
    Node,
    Op,
    Operand,
    Spec,
    Tensor,
    UndecidedSize,
    builder,
    zero_gradient,
)
from minigraph.ops.elementwise import kind, promote, widen
from minigraph.ops.indexing import TakeAlong
from minigraph.ops.shape import normalize_axis, reshape

INDEX = np.dtype(np.int64)


class Argsort(Op):
    """The indices along `axis` of the first `count` elements in ascending order, or descending.

    Equal elements keep their order.
    """

    axis: int
    descending: bool
    count: int

    def infer(self, x: Spec) -> Spec:
        a = self.axis
        with suppress(UndecidedSize):  # the call checks it
            if self.count > x.shape[a]:
                raise ShapeError(f"axis {a} of shape {x.shape} has no {self.count} elements")
        return Spec((*x.shape[:a], self.count, *x.shape[a + 1 :]), INDEX)

    def forward(self, x: Array) -> Array:
        rows = np.moveaxis(widen(x), self.axis, -1)
        if self.descending:  # backwards twice, so that equal elements keep their order
            order = rows.shape[-1] - 1 - np.argsort(rows[..., ::-1], kind="stable")[..., ::-1]
        else:
            order = np.argsort(rows, kind="stable")
        return np.ascontiguousarray(np.moveaxis(order[..., : self.count], -1, self.axis))

    grad = zero_gradient


class Searchsorted(Op):
    """The position of each element of v in the sorted row of x (..., n) with its leading indices.

    right  whether the position is after equal elements, not before them
    """

    right: bool

    def infer(self, x: Spec, v: Spec) -> Spec:
        if not x.shape or x.shape[:-1] != v.shape[:-1]:
            raise ShapeError(f"rows of shape {x.shape} and values of {v.shape} do not pair")
        if x.dtype != v.dtype:
            raise DTypeError(f"rows of {x.dtype.name} and values of {v.dtype.name}")
        return Spec(v.shape, INDEX)

    def forward(self, x: Array, v: Array) -> Array:
        y = np.empty(v.shape, INDEX)
        x, v = widen(x), widen(v)
        for row in np.ndindex(x.shape[:-1]):
            y[row] = np.searchsorted(x[row], v[row], "right" if self.right else "left")
        return y

    grad = zero_gradient


def _order(x: Node, axis: int, descending: bool, count: int | None = None) -> tuple[Node, int]:
    axis = normalize_axis(axis, x.ndim)
    return Argsort(axis, descending, x.shape[axis] if count is None else count)(x), axis


@builder
def argsort(x: Tensor, axis: Axis = -1, descending: bool = False, stable: bool = True) -> Node:
    """Return the int64 indices that sort x along `axis`.

    Equal elements keep their order, whether `stable` or not.  NaN counts as largest.

    >>> cg.compile([], ops.argsort([30, 10, 20]))()
    array([1, 2, 0])
    """
    return _order(x, axis, descending)[0]


@builder
def sort(x: Tensor, axis: Axis = -1, descending: bool = False, stable: bool = True) -> Node:
    """Return x sorted along `axis`; `argsort` has the indices.

    Equal elements keep their order, whether `stable` or not.  NaN counts as largest.

    >>> cg.compile([], ops.sort([30, 10, 20], descending=True))()
    array([30, 20, 10])
    """
    order, axis = _order(x, axis, descending)
    return TakeAlong(axis)(x, order)


@builder
def topk(
    x: Tensor, k: Size, axis: Axis = -1, largest: bool = True, sorted: bool = True
) -> tuple[Node, Node]:
    """Return the k largest (or smallest) elements along `axis`, and their int64 indices.

    They are in order, whether `sorted` or not; equal elements keep their order.  NaN counts as
    largest.  ShapeError for fewer than k elements.

    >>> cg.compile([], ops.topk([30, 10, 20], 2))()
    [array([30, 20]), array([0, 2])]
    """
    order, axis = _order(x, axis, largest, k)
    return TakeAlong(axis)(x, order), order


@builder
def searchsorted(x1: Operand, x2: Operand, side: Literal["left", "right"] = "left") -> Node:
    """Return the positions (int64) at which to insert the elements of x2 into sorted x1.

    x1 is one row, or (..., n) with a row for each row of x2 (..., m).  Side "left" is before equal
    elements, "right" after them.  The result is undefined for a row of x1 that is not sorted.

    >>> cg.compile([], ops.searchsorted([1, 3, 5], [3, 4]))()
    array([1, 2])
    """
    x, v = promote(x1, x2)
    if kind(x.dtype) == "b":
        raise DTypeError("searchsorted takes numbers, not bool")
    if x.ndim != 1:
        return Searchsorted(side == "right")(x, v)
    return reshape(Searchsorted(side == "right")(x, reshape(v, (v.size,))), v.shape)

"""Ops whose integer operands choose elements along an axis.

Negative integers count from the end; negative tokens and labels are errors.  An integer out of
range is a GraphError at the call.  `Take` uses the same indices for all rows; `TakeAlong` and the
like take indices with the axes of the array, so each row has its own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph.arguments import Axis, CountOrSize
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import (
    Array,
    DType,
    DTypeLike,
    IndexRange,
    Node,
    Op,
    Shape,
    Spec,
    Tensor,
    as_node,
    builder,
    can_cast,
    zero_gradient,
)
from minigraph.ops.comparison import where
from minigraph.ops.creation import arange
from minigraph.ops.elementwise import as_operand, astype, broadcast_shapes, kind, sum_dtype
from minigraph.ops.shape import (
    broadcast_to,
    expand_dims,
    normalize_axis,
    reshape,
    stop_gradient,
)

Sized = Spec | Node | Array


def check_range(indices: Array, range: IndexRange, name: str) -> None:
    """Raise GraphError for the first integer out of range, which the message calls `name`."""
    _, low, high = range
    outside = (indices < low) | (indices >= high)
    if outside.any():
        at = np.unravel_index(int(outside.argmax()), indices.shape)
        position = f" at {tuple(map(int, at))}" if at else ""
        is_ignored = name == "label" and indices[at] == -100  # torch's default ignore_index
        advice = "; ignore_index=-100 leaves it out" if is_ignored else ""
        raise GraphError(f"{name} {indices[at]}{position} is not in {low} ... {high - 1}{advice}")


def _range_of(size: int, from_zero: bool = False) -> IndexRange:
    """Return the range of the second operand along an axis; with `from_zero` none is negative."""
    return IndexRange(1, 0 if from_zero else -size, size)


def _check_indices(indices: Spec) -> None:
    if kind(indices.dtype) not in "iu":
        raise DTypeError(f"indices are integers, not {indices.dtype.name}")


class Take(Op):
    """The elements of x at `indices` along `axis`; negative indices count from the end.

    tokens  whether indices are tokens, of which negative ones are out of range
    """

    axis: int
    tokens: bool = False

    def infer(self, x: Spec, indices: Spec) -> Spec:
        _check_indices(indices)
        a = self.axis
        return Spec((*x.shape[:a], *indices.shape, *x.shape[a + 1 :]), x.dtype)

    def index_range(self, x: Sized, indices: Sized) -> IndexRange:
        return _range_of(x.shape[self.axis], self.tokens)

    def forward(self, x: Array, indices: Array) -> Array:
        check_range(indices, self.index_range(x, indices), "token" if self.tokens else "index")
        return np.take(x, indices, self.axis)

    def grad(self, dy: Node, y: Node, x: Node, indices: Node) -> tuple[Node, None]:
        return TakeBackward(self.axis, x.shape, self.tokens)(dy, indices), None


class TakeBackward(Op):
    """Zeros of `shape`, or x, with dy added at `indices` along `axis`, as `Take` reads them.

    The operands are dy, the indices and, if the sums begin with x instead of zeros, x.
    """

    axis: int
    shape: Shape
    tokens: bool = False

    def infer(self, dy: Spec, indices: Spec, *x: Spec) -> Spec:
        dx = Spec(self.shape, dy.dtype)
        if Take(self.axis).infer(dx, indices) != dy:
            raise ShapeError(f"dy has shape {dy.shape} for {indices.shape} indices of {self.shape}")
        _check_start(dx, *x)
        return dx

    def index_range(self, dy: Sized, indices: Sized, *x: Sized) -> IndexRange:
        return _range_of(self.shape[self.axis], self.tokens)

    def forward(self, dy: Array, indices: Array, *x: Array) -> Array:
        check_range(indices, self.index_range(dy, indices), "token" if self.tokens else "index")
        a = self.axis
        size = self.shape[a]
        rows = math.prod(self.shape[:a])
        columns = math.prod(self.shape[a + 1 :])
        (start,) = x or (np.zeros(self.shape),)
        dx = start.reshape(rows, size, columns).swapaxes(0, 1).astype(sum_dtype(dy.dtype))
        parts = dy.astype(dx.dtype).reshape(rows, indices.size, columns).swapaxes(0, 1)
        np.add.at(dx, indices.reshape(-1), parts)
        return dx.swapaxes(0, 1).reshape(self.shape).astype(dy.dtype)

    def grad(
        self, ddx: Node, dx: Node, dy: Node, indices: Node, *x: Node
    ) -> tuple[Node | None, ...]:
        return Take(self.axis, self.tokens)(ddx, indices), None, *(ddx for _ in x)


def _check_start(y: Spec, *x: Spec) -> None:
    """Raise ShapeError unless sums in y can begin with x, which may be missing."""
    if x and x != (y,):
        raise ShapeError(f"the sums are {y}, but begin with {', '.join(map(str, x))}")


class OneHot(Op):
    """A new last axis of length `size` with 1 at the label and 0 elsewhere."""

    size: int
    dtype: DType

    def infer(self, labels: Spec) -> Spec:
        if kind(labels.dtype) not in "iu":
            raise DTypeError(f"labels are integers, not {labels.dtype.name}")
        return Spec((*labels.shape, self.size), self.dtype)

    def index_range(self, labels: Sized) -> IndexRange:
        return IndexRange(0, 0, self.size)

    def forward(self, labels: Array) -> Array:
        check_range(labels, self.index_range(labels), "label")
        return (labels[..., None] == np.arange(self.size)).astype(self.dtype)

    grad = zero_gradient


# ---------------------------------------------------------------- indices of each row


def _grid(indices: Array, axis: int, size: int, labels: bool = False) -> tuple[Array, ...]:
    """Return NumPy's index of the elements at `indices` along `axis`."""
    checked, name = (indices.squeeze(axis), "label") if labels else (indices, "index")
    check_range(checked, _range_of(size, labels), name)
    grid = list(np.indices(indices.shape, sparse=True))
    grid[axis] = indices.astype(np.int64)
    return tuple(grid)


class TakeAlong(Op):
    """For each row of x along `axis` its elements at the integers in that row of `indices`.

    labels  whether indices are labels, one for each row, of which negative ones are out of range
    """

    axis: int
    labels: bool = False

    def infer(self, x: Spec, indices: Spec) -> Spec:
        _check_indices(indices)
        a = self.axis
        if _replace_size(x.shape, a, 0) != _replace_size(indices.shape, a, 0):
            raise ShapeError(
                f"x has shape {x.shape}, indices {indices.shape}; only axis {a} may differ"
            )
        return Spec(indices.shape, x.dtype)

    def index_range(self, x: Sized, indices: Sized) -> IndexRange:
        return _range_of(x.shape[self.axis], self.labels)

    def forward(self, x: Array, indices: Array) -> Array:
        return x[_grid(indices, self.axis, x.shape[self.axis], self.labels)]

    def grad(self, dy: Node, y: Node, x: Node, indices: Node) -> tuple[Node, None]:
        return AddAlong(self.axis, x.shape[self.axis], self.labels)(dy, indices), None


class AddAlong(Op):
    """Zeros, `size` along `axis`, with v added at the integers, as `TakeAlong` reads them.

    The operands are v, the indices and, if the sums begin with x instead of zeros, x.
    """

    axis: int
    size: int
    labels: bool = False

    def infer(self, v: Spec, indices: Spec, *x: Spec) -> Spec:
        _check_indices(indices)
        if v.shape != indices.shape:
            raise ShapeError(f"v has shape {v.shape}, indices {indices.shape}; they must be equal")
        y = Spec(_replace_size(v.shape, self.axis, self.size), v.dtype)
        _check_start(y, *x)
        return y

    def index_range(self, v: Sized, indices: Sized, *x: Sized) -> IndexRange:
        return _range_of(self.size, self.labels)

    def forward(self, v: Array, indices: Array, *x: Array) -> Array:
        (start,) = x or (np.zeros(_replace_size(v.shape, self.axis, self.size)),)
        y = start.astype(sum_dtype(v.dtype))
        np.add.at(y, _grid(indices, self.axis, self.size, self.labels), v.astype(y.dtype))
        return y.astype(v.dtype)

    def grad(self, dy: Node, y: Node, v: Node, indices: Node, *x: Node) -> tuple[Node | None, ...]:
        return TakeAlong(self.axis, self.labels)(dy, indices), None, *(dy for _ in x)


class PutAlong(Op):
    """x with elements replaced by those of v at the integers along `axis`; the last one stays."""

    axis: int

    def infer(self, x: Spec, indices: Spec, v: Spec) -> Spec:
        TakeAlong(self.axis).infer(x, indices)
        AddAlong(self.axis, x.shape[self.axis]).infer(v, indices)
        return x

    def index_range(self, x: Sized, indices: Sized, v: Sized) -> IndexRange:
        return _range_of(x.shape[self.axis])

    def forward(self, x: Array, indices: Array, v: Array) -> Array:
        if not v.shape[self.axis]:
            return x.copy()
        last = np.full(x.shape, -1, np.int64)  # for each element the row of v that stays
        rows = np.indices(indices.shape, sparse=True)[self.axis]
        np.maximum.at(last, _grid(indices, self.axis, x.shape[self.axis]), rows)
        return np.where(last < 0, x, v[_grid(np.maximum(last, 0), self.axis, v.shape[self.axis])])

    def grad(self, dy: Node, y: Node, x: Node, indices: Node, v: Node) -> tuple[Node, None, Node]:
        take = TakeAlong(self.axis)
        column = (-1, *(1,) * (v.ndim - self.axis - 1))
        rows = broadcast_to(reshape(arange(v.shape[self.axis]), column), v.shape)
        last = self(broadcast_to(as_node(-1), x.shape), indices, rows)
        dv = where(take(last, indices) == rows, take(dy, indices), 0)
        return where(last < 0, dy, 0), None, dv


def _replace_size(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def values_for(values: Any, x: Node, shape: Shape) -> Node:
    """Return `values` broadcast to `shape`, in the dtype of x.

    Raises DTypeError if NumPy's "same_kind" rule forbids the cast.
    """
    if isinstance(values, bool | int | float):
        return broadcast_to(as_operand(values, x.dtype), shape)
    node = as_node(values)
    if node.dtype != x.dtype and not can_cast(node.dtype, x.dtype):
        raise DTypeError(f"values of {node.dtype.name} do not cast to {x.dtype.name}")
    if broadcast_shapes(node.shape, shape) != shape:
        raise ShapeError(f"values of shape {node.shape} do not broadcast to {shape}")
    return broadcast_to(as_operand(node, x.dtype), shape)


@builder
def take(x: Tensor, indices: Tensor, axis: Axis | None = None) -> Node:
    """Return the elements of x at the integers `indices` along `axis`; None: of x flattened.

    >>> cg.compile([], ops.take([10, 20, 30], [2, 0], axis=0))()
    array([30, 10])
    """
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    return Take(normalize_axis(axis, x.ndim))(x, indices)


def take_tokens(table: Node, tokens: Node, padding: int | None = None) -> Node:
    """Return the rows of a table at the integers `tokens`; a negative token is an error.

    padding  a token whose row gets no gradient
    """
    y = Take(0, tokens=True)(table, tokens)
    if padding is None:
        return y
    # In int64, because the tokens' type may be too small for `padding`.
    is_padding = expand_dims(astype(tokens, "int64") == padding, -1)
    return where(is_padding, stop_gradient(y), y)


@builder
def one_hot(labels: Tensor, num_classes: CountOrSize, dtype: DTypeLike = "int64") -> Node:
    """Return integer labels (...) as (..., num_classes) with 1 at the label and 0 elsewhere.

    >>> cg.compile([], ops.one_hot([2, 0], 3))()
    array([[0, 0, 1],
           [1, 0, 0]])
    """
    return OneHot(num_classes, dtype)(labels)


@builder
def take_along_axis(x: Tensor, indices: Tensor, axis: Axis = -1) -> Node:
    """Return for each row of x along `axis` its elements at the integers in that row of `indices`.

    Both have the same number of axes, and along the other axes the same sizes.

    >>> cg.compile([], ops.take_along_axis([[10, 30, 20]], [[0, 2, 1]]))()
    array([[10, 20, 30]])
    """
    axis = normalize_axis(axis, x.ndim)
    return TakeAlong(axis)(x, indices)

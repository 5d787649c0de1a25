"""Ops whose integer operands choose elements.  A GraphError at the call if one is out of range."""

from __future__ import annotations

import math

import numpy as np

from minigraph.arguments import Axis, CountOrSize
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import (
    Array,
    DType,
    DTypeLike,
    Node,
    Op,
    Shape,
    Spec,
    Tensor,
    builder,
    zero_gradient,
)
from minigraph.ops.elementwise import kind, sum_dtype
from minigraph.ops.shape import normalize_axis, reshape


def check_range(indices: Array, low: int, high: int, what: str) -> None:
    """Raise GraphError, which names the first integer that is not in low ... high - 1."""
    outside = (indices < low) | (indices >= high)
    if outside.any():
        at = np.unravel_index(int(outside.argmax()), indices.shape)
        where = f" at {tuple(map(int, at))}" if at else ""
        ignored = what == "label" and indices[at] == -100  # as torch does where it is not asked to
        advice = "; ignore_index=-100 leaves it out" if ignored else ""
        raise GraphError(f"{what} {indices[at]}{where} is not in {low} ... {high - 1}{advice}")


class Take(Op):
    """The elements of x at `indices` along `axis`; negative ones count from the end.

    Of `tokens`, which are indices into a table of words, negative ones are out of range.
    """

    axis: int
    tokens: bool = False

    def infer(self, x: Spec, indices: Spec) -> Spec:
        if kind(indices.dtype) not in "iu":
            raise DTypeError(f"indices are integers, not {indices.dtype.name}")
        a = self.axis
        return Spec((*x.shape[:a], *indices.shape, *x.shape[a + 1 :]), x.dtype)

    def forward(self, x: Array, indices: Array) -> Array:
        _check_places(self, indices, x.shape[self.axis])
        return np.take(x, indices, self.axis)

    def grad(self, dy: Node, y: Node, x: Node, indices: Node) -> tuple[Node, None]:
        return TakeBackward(self.axis, x.shape, self.tokens)(dy, indices), None


class TakeBackward(Op):
    """Zeros of `shape` with dy added at `indices` along `axis`, as `Take` takes them."""

    axis: int
    shape: Shape
    tokens: bool = False

    def infer(self, dy: Spec, indices: Spec) -> Spec:
        dx = Spec(self.shape, dy.dtype)
        if Take(self.axis).infer(dx, indices) != dy:
            raise ShapeError(f"dy has shape {dy.shape}, of {self.shape} at {indices.shape}")
        return dx

    def forward(self, dy: Array, indices: Array) -> Array:
        a = self.axis
        size = self.shape[a]
        _check_places(self, indices, size)
        rows = math.prod(self.shape[:a])
        columns = math.prod(self.shape[a + 1 :])
        dx = np.zeros((size, rows, columns), sum_dtype(dy.dtype))
        parts = dy.astype(dx.dtype).reshape(rows, indices.size, columns).swapaxes(0, 1)
        np.add.at(dx, indices.reshape(-1), parts)
        return dx.swapaxes(0, 1).reshape(self.shape).astype(dy.dtype)

    def grad(self, ddx: Node, dx: Node, dy: Node, indices: Node) -> tuple[Node, None]:
        return Take(self.axis, self.tokens)(ddx, indices), None


def _check_places(op: Take | TakeBackward, indices: Array, size: int) -> None:
    check_range(indices, 0 if op.tokens else -size, size, "token" if op.tokens else "index")


class OneHot(Op):
    """A new last axis of length `size` with 1 at the label and 0 elsewhere."""

    size: int
    dtype: DType

    def infer(self, labels: Spec) -> Spec:
        if kind(labels.dtype) not in "iu":
            raise DTypeError(f"labels are integers, not {labels.dtype.name}")
        return Spec((*labels.shape, self.size), self.dtype)

    def forward(self, labels: Array) -> Array:
        check_range(labels, 0, self.size, "label")
        return (labels[..., None] == np.arange(self.size)).astype(self.dtype)

    grad = zero_gradient


@builder
def take(x: Tensor, indices: Tensor, axis: Axis | None = None) -> Node:
    """Return the elements of x at the integers `indices` along `axis`; None: of x flattened.

    >>> cg.compile([], ops.take([10, 20, 30], [2, 0], axis=0))()
    array([30, 10])
    """
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    return Take(normalize_axis(axis, x.ndim))(x, indices)


def take_tokens(table: Node, tokens: Node) -> Node:
    """Return the rows of a table at the integers `tokens`, of which none may be negative."""
    return Take(0, tokens=True)(table, tokens)


@builder
def one_hot(labels: Tensor, num_classes: CountOrSize, dtype: DTypeLike = "int64") -> Node:
    """Return integer labels (...) as (..., num_classes) with 1 at the label and 0 elsewhere.

    >>> cg.compile([], ops.one_hot([2, 0], 3))()
    array([[0, 0, 1],
           [1, 0, 0]])
    """
    return OneHot(num_classes, dtype)(labels)

"""Ops that keep all elements of an array and change its shape, and the parsing of axes."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from minigraph.arguments import Integers, Kind, short_repr, sizes
from minigraph.errors import ShapeError
from minigraph.graph import (
    Array,
    Node,
    Op,
    Shape,
    Sizes,
    Spec,
    Tensor,
    builder,
    gradients,
    zero_gradient,
)
from minigraph.ops.elementwise import broadcast_shapes
from minigraph.symbolic import same_shape

Ints = tuple[int, ...]


class Reshape(Op):
    """The same elements in row-major order, in another shape."""

    shape: Shape

    is_view = True
    keeps_order = True

    def infer(self, x: Spec) -> Spec:
        if x.size != math.prod(self.shape):
            raise ShapeError(
                f"{x.size} elements do not fit shape {self.shape}, which has "
                f"{math.prod(self.shape)}; -1 stands for one size that fits"
            )
        return Spec(self.shape, x.dtype)

    def forward(self, x: Array) -> Array:
        return x.reshape(self.shape)

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...] | None:
        if [n for n in x if n != 1] != [n for n in y if n != 1]:
            return None
        longer = iter([i for i, n in enumerate(x) if n != 1])
        return tuple(None if n == 1 else next(longer) for n in y)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (reshape(dy, x.shape),)


class PermuteDims(Op):
    """The axes in another order: axis i of the result is axis `axes[i]` of x."""

    axes: Ints

    is_view = True

    def infer(self, x: Spec) -> Spec:
        if sorted(self.axes) != list(range(len(x.shape))):
            raise ShapeError(f"axes {self.axes} are not an order of the {len(x.shape)} axes")
        return Spec(tuple(x.shape[a] for a in self.axes), x.dtype)

    def forward(self, x: Array) -> Array:
        return x.transpose(self.axes)

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...]:
        return self.axes

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (permute_dims(dy, tuple(np.argsort(self.axes).tolist())),)


class BroadcastTo(Op):
    """x repeated along new leading axes and along axes of length 1."""

    shape: Shape

    is_view = True
    grad = gradients(lambda dy, y, x: dy)  # mg.grad sums it down to the shape of x

    def infer(self, x: Spec) -> Spec:
        y = Spec(self.shape, x.dtype)  # counts the axes, of which NumPy broadcasts only so many
        if broadcast_shapes(x.shape, y.shape) != y.shape:
            raise ShapeError(f"shape {x.shape} does not broadcast to {y.shape}")
        return y

    def forward(self, x: Array) -> Array:
        return np.broadcast_to(x, self.shape)

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...]:
        lead = len(y) - len(x)
        return (None,) * lead + tuple(None if n == 1 else i for i, n in enumerate(x))


class Alike(Op):
    """An op whose result has the shape and dtype of its first input."""

    def infer(self, x: Spec, *others: Spec) -> Spec:
        return x


class Identity(Alike):
    """An op whose result is its first input."""

    is_view = True
    keeps_order = True

    def forward(self, x: Array, *others: Array) -> Array:
        return x

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...]:
        return tuple(range(len(x)))


class StopGradient(Identity):
    """x, which `mg.grad` treats as a constant."""

    grad = zero_gradient


def matrices(x: Node) -> Node:
    """Return x (..., rows, columns); ShapeError for fewer axes."""
    if x.ndim < 2:
        raise ShapeError(f"x has shape {x.shape}; it is (..., rows, columns)")
    return x


def normalize_axis(axis: int, ndim: int) -> int:
    """Return `axis` counted from the front; ShapeError if it is out of range."""
    if not -ndim <= axis < ndim:
        raise ShapeError(
            f"axis {short_repr(axis)} does not exist; there are {ndim} axes"
            + (f", {-ndim} to {ndim - 1}" if ndim else "")
        )
    return axis % ndim


def normalize_axes(axes: Ints | None, ndim: int) -> Ints:
    """Return `axes` (None: all) counted from the front and sorted; ShapeError if one is twice."""
    if axes is None:
        return tuple(range(ndim))
    counted = sorted(normalize_axis(axis, ndim) for axis in axes)
    if len(set(counted)) < len(counted):
        raise ShapeError(f"axis {axes} names an axis twice")
    return tuple(counted)


PARTIAL = Kind("an integer >= -1 or a sequence of them", lambda n: sizes(n, -1), ShapeError)


@builder
def reshape(x: Tensor, shape: Annotated[Any, PARTIAL]) -> Node:
    """Return the elements of x in row-major order as `shape`; one size may be -1.

    >>> cg.compile([], ops.reshape([1, 2, 3, 4], (2, -1)))()
    array([[1, 2],
           [3, 4]])
    """
    if -1 in shape:
        product = math.prod(n for n in shape if n != -1)
        if shape.count(-1) > 1 or product == 0 or x.size % product:
            raise ShapeError(
                f"no size for -1 makes {x.size} elements fit shape {shape}; only one size may be -1"
            )
        shape = tuple(x.size // product if n == -1 else n for n in shape)
    return x if same_shape(shape, x.shape) else Reshape(shape)(x)


@builder
def permute_dims(x: Tensor, axes: Integers) -> Node:
    """Return x with its axes in the order `axes`.

    >>> ops.permute_dims(mg.input("x", (2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    order = tuple(normalize_axis(axis, x.ndim) for axis in axes)
    return x if order == tuple(range(x.ndim)) else PermuteDims(order)(x)


@builder
def broadcast_to(x: Tensor, shape: Sizes) -> Node:
    """Return x repeated to `shape` by NumPy's rule.

    >>> cg.compile([], ops.broadcast_to([1, 2], (2, 2)))()
    array([[1, 2],
           [1, 2]])
    """
    return x if same_shape(shape, x.shape) else BroadcastTo(shape)(x)


@builder
def expand_dims(x: Tensor, axis: Integers = 0) -> Node:
    """Return x with axes of length 1 inserted, so that they are `axis` of the result.

    >>> ops.expand_dims(mg.input("x", (2, 3)), 0).shape
    (1, 2, 3)
    """
    ndim = x.ndim + len(axis)
    new = normalize_axes(axis, ndim)
    sizes = iter(x.shape)
    return reshape(x, [1 if i in new else next(sizes) for i in range(ndim)])


@builder
def squeeze(x: Tensor, axis: Integers | None = None) -> Node:
    """Return x without the axes `axis`, which have length 1; None: without all such axes.

    >>> ops.squeeze(mg.input("x", (2, 1, 3)), 1).shape
    (2, 3)
    """
    if axis is None:
        return reshape(x, [n for n in x.shape if n != 1])
    axes = normalize_axes(axis, x.ndim)
    if any(x.shape[a] != 1 for a in axes):
        raise ShapeError(f"axis {axis} of shape {x.shape} does not have length 1")
    return reshape(x, [n for i, n in enumerate(x.shape) if i not in axes])


@builder
def stop_gradient(x: Tensor) -> Node:
    """Return x, which `mg.grad` treats as a constant.

    >>> cg.compile([], ops.stop_gradient([1.0, 2.0]))()
    array([1., 2.])
    """
    return StopGradient()(x)

"""Reductions over axes.  The ops keep the reduced axes with length 1; the functions drop them."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from minigraph.arguments import Axis, Integers, Scalar, short_repr
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import (
    BOOL,
    Array,
    DType,
    Node,
    Op,
    Shape,
    Spec,
    Tensor,
    builder,
    from_sizes,
    function_of,
    gradients,
    zero_gradient,
)
from minigraph.ops.arithmetic import Abs, Sqrt
from minigraph.ops.comparison import Isfinite, where
from minigraph.ops.elementwise import FloatTensor, kind, sum_dtype, widen
from minigraph.ops.exponential import Exp, Log
from minigraph.ops.joining import concat, split
from minigraph.ops.padding import pad
from minigraph.ops.shape import (
    broadcast_to,
    normalize_axes,
    normalize_axis,
    permute_dims,
    reshape,
    squeeze,
    stop_gradient,
)
from minigraph.symbolic import same_shape

MAX_PLAIN_SUM = 64  # at most so many numbers are added up in their own type


class Reduction(Op):
    """An op that reduces all elements along `axes` to one.

    `combine` is a C expression of two elements or partial results, for the CPU and for CUDA alike;
    `identity` is its neutral element ({lowest} and {highest}: of the type).

    `of` is the function that users call; `minigraph.ops` exports it under the op's name.
    """

    axes: tuple[int, ...]

    combine: ClassVar[str] = ""
    adds: ClassVar[bool] = False  # `combine` adds, so that its rounding can be compensated
    identity: ClassVar[str] = ""

    of: ClassVar[Callable[..., Node]]

    def __init_subclass__(cls, eq: bool = True) -> None:
        super().__init_subclass__(eq)

        def reduce(x: Tensor, axis: Integers | None = None, keepdims: bool = False) -> Node:
            axes = normalize_axes(axis, x.ndim)
            return drop_axes(cls(axes)(x), axes, keepdims)

        cls.of = staticmethod(function_of(cls, reduce))

    def infer(self, x: Spec) -> Spec:
        shape = tuple(1 if i in self.axes else n for i, n in enumerate(x.shape))
        return Spec(shape, self.result(x.dtype))

    def result(self, dtype: DType) -> DType:
        return dtype


class SumOrProduct(Reduction):
    """A reduction that adds or multiplies; small integers widen as in NumPy."""

    def result(self, dtype: DType) -> DType:
        if kind(dtype) == "f":
            return dtype
        return np.result_type(dtype, np.uint64 if kind(dtype) == "u" else np.int64)


class Sum(SumOrProduct):
    """The sum over `axis`; of bool and small integers, in 64 bits."""

    example = "[[1, 3], [4, 2]], axis=1", "array([4, 6])"
    combine = "{0} + {1}"
    adds = True
    identity = "0"
    grad = gradients(lambda dy, y, x: broadcast_to(dy, x.shape))

    def forward(self, x: Array) -> Array:
        result = self.result(x.dtype)
        return x.sum(axis=self.axes, keepdims=True, dtype=sum_dtype(result)).astype(result)


class Prod(SumOrProduct):
    """The product over `axis`; of bool and small integers, in 64 bits."""

    example = "[[1, 3], [4, 2]], axis=1", "array([3, 8])"
    combine = "{0} * {1}"
    identity = "1"

    def forward(self, x: Array) -> Array:
        wide = widen(x)
        total = wide.prod(axis=self.axes, keepdims=True, dtype=self.result(wide.dtype))
        return total.astype(self.result(x.dtype))

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        outer_axes = tuple(a for a in range(x.ndim) if a not in self.axes)
        order = (*outer_axes, *self.axes)
        moved = permute_dims(widen(x), order)
        outer = tuple(x.shape[a] for a in outer_axes)
        count = math.prod(x.shape[a] for a in self.axes)
        dx = _product_of_others(reshape(widen(dy), (*outer, 1)), reshape(moved, (*outer, count)))
        back = permute_dims(reshape(dx, moved.shape), np.argsort(order).tolist())
        return (back.astype(x.dtype),)


def _product_of_others(dy: Node, x: Node) -> Node:
    """Return for each element of x [..., n] dy [..., 1] times the product of all other elements.

    Halves are multiplied repeatedly, and each is the other's gradient.  Nothing is divided, so
    zeros and infinities need no special case, and derivatives of every order are right.
    """
    if not x.shape[-1]:
        return dy[..., :0]
    halves = []
    while (n := x.shape[-1]) > 1:
        even = pad(x, (*((0, 0),) * (x.ndim - 1), (0, n % 2)), 1)
        left, right = split(even, 2, -1)
        halves.append((left, right, n))
        x = left * right
    for left, right, n in reversed(halves):
        dy = concat([dy * right, dy * left], -1)[..., :n]
    return dy


class Extremum(Reduction):
    """The largest or smallest element; NaN if there is one.  Equal elements share the gradient."""

    def infer(self, x: Spec) -> Spec:
        if not builtins.all(x.shape[a] for a in self.axes):
            raise ShapeError(f"{self.name} over axes {self.axes} of shape {x.shape}: no elements")
        return super().infer(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        is_extremum = widen((x == y).astype(x.dtype))  # 16-bit floats cannot count many
        return (dy * (is_extremum / Sum(self.axes)(is_extremum)).astype(dy.dtype),)


class Max(Extremum):
    """The largest element along `axis`; NaN if there is one."""

    example = "[[1, 3], [4, 2]], axis=1", "array([3, 4])"
    combine = "(({0} > {1}) | ({0} != {0}) ? {0} : {1})"
    identity = "{lowest}"

    def forward(self, x: Array) -> Array:
        return x.max(axis=self.axes, keepdims=True)


class Min(Extremum):
    """The smallest element along `axis`; NaN if there is one."""

    example = "[[1, 3], [4, 2]], axis=1", "array([1, 2])"
    combine = "(({0} < {1}) | ({0} != {0}) ? {0} : {1})"
    identity = "{highest}"

    def forward(self, x: Array) -> Array:
        return x.min(axis=self.axes, keepdims=True)


class Argmax(Reduction):
    """The int64 index of the first largest element along the axis; a NaN counts as largest."""

    def infer(self, x: Spec) -> Spec:
        if not x.shape[self.axes[0]]:
            raise ShapeError(f"argmax over axis {self.axes[0]} of shape {x.shape}: no elements")
        return super().infer(x)

    def result(self, dtype: DType) -> DType:
        return np.dtype(np.int64)

    def forward(self, x: Array) -> Array:
        return x.argmax(axis=self.axes[0], keepdims=True)

    grad = zero_gradient


def drop_axes(y: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    return y if keepdims else squeeze(y, axes)


@builder
def argmax(x: Tensor, axis: Axis | None = None, keepdims: bool = False) -> Node:
    """Return the int64 index of the first largest element along `axis`; None: of x flattened.

    >>> cg.compile([], ops.argmax([[1, 3], [4, 2]], axis=1))()
    array([1, 0])
    """
    if axis is None:
        index = Argmax((0,))(reshape(x, (-1,) if x.size else (0,)))
        return reshape(index, (1,) * x.ndim if keepdims else ())
    axes = (normalize_axis(axis, x.ndim),)
    return drop_axes(Argmax(axes)(x), axes, keepdims)


@builder
def argmin(x: Tensor, axis: Axis | None = None, keepdims: bool = False) -> Node:
    """Return the int64 index of the first smallest element along `axis`; None: of x flattened.

    A NaN counts as smallest.

    >>> cg.compile([], ops.argmin([3, 1, 2]))()
    array(1)
    """
    if not (x.size if axis is None else x.shape[normalize_axis(axis, x.ndim)]):
        raise ShapeError(f"argmin over axis {axis} of shape {x.shape}: no elements")
    return argmax(-x if kind(x.dtype) == "f" else ~x, axis, keepdims)


@builder
def mean(x: Tensor, axis: Integers | None = None, keepdims: bool = False) -> Node:
    """Return the mean over `axis`; integers give float64.  ShapeError over no elements.

    >>> cg.compile([], ops.mean([[1.0, 2.0], [3.0, 4.0]], axis=0))()
    array([2., 3.])
    """
    x = _as_float(x)
    axes = normalize_axes(axis, x.ndim)
    wide = widen(x)
    count = from_sizes("mean", _check_count, (_count(x, axes), axes, x.shape), (), wide.dtype)
    y = Sum(axes)(wide) / count
    return drop_axes(y.astype(x.dtype), axes, keepdims)


@builder
def var(
    x: Tensor, axis: Integers | None = None, correction: float = 0, keepdims: bool = False
) -> Node:
    """Return the variance over `axis`: squared distances from the mean over n - correction.

    >>> cg.compile([], ops.var([1.0, 2.0, 3.0, 4.0]))()
    array(1.25)
    """
    x = _as_float(x)
    axes = normalize_axes(axis, x.ndim)
    wide = widen(x)
    arguments = (_count(x, axes) - correction, axes, x.shape, correction)
    freedom = from_sizes("var", _degrees_of_freedom, arguments, (), wide.dtype)
    deviation = wide - mean(wide, axes, keepdims=True)
    y = Sum(axes)(deviation * deviation) / freedom
    return drop_axes(y.astype(x.dtype), axes, keepdims)


def _as_float(x: Node) -> Node:
    return x if kind(x.dtype) == "f" else x.astype("float64")


def _count(x: Node, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[a] for a in axes)


def _check_count(count: int, axes: tuple[int, ...], shape: Shape) -> Array:
    """Return the number of elements of a mean; ShapeError for 0."""
    if not count:
        raise ShapeError(f"mean over axes {axes} of shape {shape}: no elements")
    return np.array(count)


def _degrees_of_freedom(
    count: float, axes: tuple[int, ...], shape: Shape, correction: float
) -> Array:
    """Return the divisor of a variance's sum of squares; raise ShapeError if it is not above 0."""
    if count <= 0:
        raise ShapeError(
            f"var over axes {axes} of shape {shape}: too few elements for correction {correction:g}"
        )
    return np.array(count)


def _sqrt(x: Node) -> Node:
    """Return the square root of numbers >= 0; as in PyTorch, its gradient at 0 is 0."""
    is_zero = x == 0
    return where(is_zero, 0, Sqrt.of(where(is_zero, 1, x)))


@builder
def std(
    x: Tensor, axis: Integers | None = None, correction: float = 0, keepdims: bool = False
) -> Node:
    """Return the standard deviation over `axis`: the root of `var`.  Its gradient at 0 is 0.

    >>> cg.compile([], ops.std([1.0, 2.0, 3.0, 4.0]))()
    array(1.11803399)
    """
    y = _sqrt(var(widen(x), axis, correction, keepdims))
    return y.astype(x.dtype) if kind(x.dtype) == "f" else y


@builder
def norm(x: Tensor, ord: Scalar = 2, axis: Integers | None = None, keepdims: bool = False) -> Node:
    """Return the norm of vectors along `axis`; None: of x flattened.

    `ord` is 1, 2, infinity (the largest magnitude), -infinity (the smallest) or 0 (the number of
    elements that are not 0).  With 2 the gradient is 0 where the norm is 0.

    >>> cg.compile([], ops.norm([3.0, 4.0]))()
    array(5.)
    """
    x = _as_float(x)
    wide = widen(x)
    match ord:
        case 2:
            y = _sqrt(Sum.of(wide * wide, axis, keepdims))
        case 1:
            y = Sum.of(Abs.of(wide), axis, keepdims)
        case 0:
            y = Sum.of((wide != 0).astype(wide.dtype), axis, keepdims)
        case math.inf:
            y = Max.of(Abs.of(wide), axis, keepdims)
        case _ if ord == -math.inf:
            y = Min.of(Abs.of(wide), axis, keepdims)
        case _:
            raise GraphError(f"ord is {short_repr(ord)}; it takes 0, 1, 2 or an infinity")
    return y.astype(x.dtype)


@builder
def logsumexp(x: FloatTensor, axis: Integers | None = None, keepdims: bool = False) -> Node:
    """Return log(sum(exp(x))) over `axis`, without overflow; -inf over no elements.

    >>> cg.compile([], ops.logsumexp([1000.0, 1000.0]))()
    array(1000.69314718)
    """
    axes = normalize_axes(axis, x.ndim)
    if not builtins.all(x.shape[a] for a in axes):
        return drop_axes(Log.of(Sum(axes)(x)), axes, keepdims)
    wide = widen(x)
    peak = stop_gradient(Max(axes)(wide))
    peak = where(Isfinite.of(peak), peak, 0)
    y = Log.of(Sum(axes)(Exp.of(wide - peak))) + peak
    return drop_axes(y.astype(x.dtype), axes, keepdims)


@builder
def any(x: Tensor, axis: Integers | None = None, keepdims: bool = False) -> Node:
    """Return whether an element along `axis` is not 0; False of none.

    >>> cg.compile([], ops.any([[1, 0], [0, 0]], axis=1))()
    array([ True, False])
    """
    return count_nonzero(x, axis, keepdims) > 0


@builder
def all(x: Tensor, axis: Integers | None = None, keepdims: bool = False) -> Node:
    """Return whether no element along `axis` is 0; True of none.

    >>> cg.compile([], ops.all([[1, 0], [1, 1]], axis=1))()
    array([False,  True])
    """
    return count_nonzero(x == 0, axis, keepdims) == 0


@builder
def count_nonzero(x: Tensor, axis: Integers | None = None, keepdims: bool = False) -> Node:
    """Return how many elements along `axis` are not 0, as int64.

    >>> cg.compile([], ops.count_nonzero([[1, 0], [2, 3]], axis=1))()
    array([1, 2])
    """
    return Sum.of(x if x.dtype == BOOL else x != 0, axis, keepdims)


def sum_to(x: Node, shape: tuple[int, ...]) -> Node:
    """Undo broadcasting: sum x down to `shape`, which broadcasts to the shape of x."""
    if same_shape(x.shape, shape):
        return x
    lead = x.ndim - len(shape)
    padded = (1,) * lead + shape
    axes = tuple(i for i, (n, m) in enumerate(zip(x.shape, padded, strict=True)) if n != m)
    return reshape(Sum(axes)(x) if axes else x, shape)

"""Functions of all elements along axes, made of simpler ones."""

from __future__ import annotations

import builtins
import math

from minigraph.arguments import Axis, Integers, Scalar, Size, shown
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import BOOL, Node, Operand, Tensor, builder
from minigraph.ops.arithmetic import Abs, Sqrt
from minigraph.ops.comparison import Maximum, where
from minigraph.ops.elementwise import FloatTensor, broadcast_shapes, kind, promote, widen
from minigraph.ops.reduction import Max, Min, Sum, argmax, as_float, var
from minigraph.ops.shape import broadcast_to, normalize_axis
from minigraph.symbolic import assuming_large


def _sqrt(x: Node) -> Node:
    """Return the square root of numbers >= 0, whose gradient is 0 at 0, as PyTorch has it."""
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

    `ord` is 1, 2, infinity (the largest magnitude), -infinity (the smallest) or 0 (how many are not
    0).  The gradient of 2 is 0 where the norm is 0.

    >>> cg.compile([], ops.norm([3.0, 4.0]))()
    array(5.)
    """
    x = as_float(x)
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
            raise GraphError(f"ord is {shown(ord)}; it takes 0, 1, 2 or an infinity")
    return y.astype(x.dtype)


@builder
def normalize(x: FloatTensor, p: Scalar = 2, axis: Axis = 1, eps: float = 1e-12) -> Node:
    """Return x over its norm along `axis`, or over `eps` where the norm is smaller.

    p  the `ord` of `norm`

    >>> cg.compile([], ops.normalize([[3.0, 4.0]]))()
    array([[0.6, 0.8]])
    """
    return _normalize(widen(x), p, axis, eps).astype(x.dtype)


@builder
def cosine_similarity(x1: Operand, x2: Operand, axis: Axis = 1, eps: float = 1e-8) -> Node:
    """Return the cosine of the angles between vectors along `axis`; the arrays broadcast.

    A norm below `eps` counts as `eps`.

    >>> cg.compile([], ops.cosine_similarity([[3.0, 4.0]], [[4.0, 3.0]]))()
    array([0.96])
    """
    given = promote(x1, x2, floating=True)
    shape = broadcast_shapes(*(x.shape for x in given))
    first, second = (_normalize(widen(broadcast_to(x, shape)), 2, axis, eps) for x in given)
    return Sum.of(first * second, axis).astype(given[0].dtype)


def _normalize(x: Node, p: Scalar, axis: int, eps: float) -> Node:
    return x / Maximum.of(norm(x, p, axis, keepdims=True), eps)


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
def diff(x: Tensor, axis: Axis = -1, n: Size = 1) -> Node:
    """Return each element along `axis` less the one before it, `n` times.

    Of bool, whether the two differ.

    >>> cg.compile([], ops.diff([1, 4, 9]))()
    array([3, 5])
    """
    axis = normalize_axis(axis, x.ndim)
    with assuming_large():
        times = min(n, x.shape[axis])  # then no element is left
    for _ in range(times):
        before = (builtins.slice(None),) * axis
        last, first = x[(*before, builtins.slice(1, None))], x[(*before, builtins.slice(-1))]
        x = last != first if x.dtype == BOOL else last - first
    return x

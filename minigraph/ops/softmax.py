"""Softmax and its logarithm."""

from __future__ import annotations

import numpy as np

from minigraph.arguments import Axis
from minigraph.errors import ShapeError
from minigraph.graph import Composed, Node, Tensor, builder
from minigraph.ops import comparison
from minigraph.ops.comparison import Maximum
from minigraph.ops.elementwise import FloatTensor, widen
from minigraph.ops.exponential import Exp, Log
from minigraph.ops.reduction import Max, Sum
from minigraph.ops.shape import Alike, normalize_axis, stop_gradient


class AlongAxis(Composed, Alike):
    """A function of the vectors along an axis."""

    axis: int


class Softmax(AlongAxis):
    """exp(x) over its sum along `axis`.

    masked  whether a vector of nothing but -inf gives zeros, not NaN
    """

    masked: bool = False

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        weighted = dy * y
        return (weighted - y * Sum((self.axis,))(weighted),)

    def expand(self, x: Node) -> tuple[Node]:
        if not x.size:
            return (x,)
        wide = widen(x)
        peak = Max((self.axis,))(wide)
        if self.masked:  # other vectors keep their results: their sums are at least 1
            peak = Maximum.of(peak, float(np.finfo(wide.dtype).min))
        e = Exp.of(wide - stop_gradient(peak))
        total = Sum((self.axis,))(e)
        return ((e / (Maximum.of(total, 1) if self.masked else total)).astype(x.dtype),)


class LogSoftmax(AlongAxis):
    """x - log(sum(exp(x))) along `axis`."""

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy - Exp.of(y) * Sum((self.axis,))(dy),)

    def expand(self, x: Node) -> tuple[Node]:
        if not x.size:
            return (x,)
        wide = widen(x)
        shifted = wide - stop_gradient(Max((self.axis,))(wide))
        return ((shifted - Log.of(Sum((self.axis,))(Exp.of(shifted)))).astype(x.dtype),)


@builder
def softmax(x: FloatTensor, axis: Axis = -1, where: Tensor | None = None) -> Node:
    """Return exp(x) over its sum along `axis`.

    where  bools that broadcast to x: masked elements (False) do not contribute and give 0, even if
           a whole vector is masked.  (A vector of -inf gives NaN, as in PyTorch.)

    >>> cg.compile([], ops.softmax([[0.0, 1.0]]))()
    array([[0.26894142, 0.73105858]])
    >>> cg.compile([], ops.softmax([0.0, 1.0], where=[False, False]))()
    array([0., 0.])
    """
    axis = normalize_axis(axis, x.ndim)
    if where is None:
        return Softmax(axis)(x)
    masked = comparison.where(where, x, -np.inf)
    if masked.shape != x.shape:
        raise ShapeError(f"where of shape {where.shape} does not broadcast to {x.shape}")
    return Softmax(axis, masked=True)(masked)


@builder
def log_softmax(x: FloatTensor, axis: Axis = -1) -> Node:
    """Return log(softmax(x)) along `axis`, accurate for small values of the softmax.

    >>> cg.compile([], ops.log_softmax([[0.0, 1.0]]))()
    array([[-1.31326169, -0.31326169]])
    """
    return LogSoftmax(normalize_axis(axis, x.ndim))(x)

"""Batch normalisation, by the statistics of the batch or by running ones.

Statistics, weights and biases are vectors [c] for x [n, c, ...].  In the optimizer's layouts (see
`minigraph.ops.layout`) x is [n, c / l, h, w, l], and the vectors are [c / l, l].
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np

from minigraph.distributed.world import Processes, World
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import Composed, Node, Spec, Tensor, builder, constant
from minigraph.ops.activation import Relu
from minigraph.ops.arithmetic import Rsqrt, Square
from minigraph.ops.collective import AllGather
from minigraph.ops.comparison import Isfinite, Maximum, where
from minigraph.ops.elementwise import kind, widen
from minigraph.ops.joining import stack
from minigraph.ops.reduction import Sum, mean, var
from minigraph.ops.shape import broadcast_to, reshape


def of_channels(v: Node, x: Node) -> Node:
    """View values of channels, [1, c, 1, ...], so that they broadcast against x."""
    return v.reshape((1, v.shape[0], *(1,) * (x.ndim - 1 - v.ndim), *v.shape[1:]))


def _outer_axes(x: Node, v: Node) -> tuple[int, ...]:
    """Return all axes but those of the channels."""
    return (0, *range(2, x.ndim + 1 - v.ndim))


def _check_channels(x: Spec, *vectors: Spec) -> None:
    if len(x.shape) < 2:
        raise ShapeError(f"the input is (n, c, ...), not {x.shape}")
    channels = x.shape[1:2]
    if len(x.shape) == 5 and len(vectors[0].shape) == 2:
        channels = (x.shape[1], x.shape[4])
    for v in vectors:
        if v.shape != channels:
            raise ShapeError(
                f"an input of {math.prod(channels)} channels takes parameters of shape {channels}, "
                f"not {v.shape}"
            )
    if len({v.dtype for v in (x, *vectors)}) > 1 or kind(x.dtype) != "f":
        raise DTypeError("the input and its parameters have one float dtype")


class BatchNorm(Composed):
    """Normalise x by the batch's statistics: (y, mean, biased variance).

    y = (x - mean) / sqrt(variance + eps) * weight + bias (Ioffe and Szegedy, 2015).
    """

    eps: float

    def infer(self, x: Spec, weight: Spec, bias: Spec) -> tuple[Spec, Spec, Spec]:
        _check_channels(x, weight, bias)
        if x.size <= weight.size:
            raise ShapeError(
                f"statistics of {x.shape} need more than one value per channel; drop_last=True of "
                "a DataLoader drops a smaller last batch, which may be of one example"
            )
        return x, weight, weight

    def expand(self, x: Node, weight: Node, bias: Node) -> tuple[Node, Node, Node]:
        y, mean, var = _normalized(x, weight, bias, self.eps)
        return y.astype(x.dtype), mean, var

    def grad(
        self,
        dys: tuple[Node | None, Node | None, Node | None],
        ys: tuple[Node, Node, Node],
        x: Node,
        w: Node,
        b: Node,
    ) -> tuple[Node | None, ...]:
        dy, dmean, dvar = dys
        _, m, v = ys
        count = x.size // w.size
        dxs: list[Node] = []
        dw = db = None
        if dy is not None:
            dx, dw, db = BatchNormBackward(self.eps).results(dy, x, w, m, v)
            dxs.append(dx)
        if dmean is not None:
            dxs.append(broadcast_to(of_channels(dmean / count, x), x.shape))
        if dvar is not None:
            dxs.append((x - of_channels(m, x)) * of_channels(dvar * (2 / count), x))
        return functools.reduce(operator.add, dxs), dw, db


def _normalized(x: Node, weight: Node, bias: Node, eps: float) -> tuple[Node, Node, Node]:
    """Return the results of BatchNorm, with y in at least float32 instead of the dtype of x.

    The mean of the deviations corrects the mean by a few ulp, which would be all of y in a channel
    of equal numbers (the corrected two-pass algorithm of T. Chan, G. Golub, R. LeVeque, 1983,
    Algorithms for computing the sample variance).
    """
    wide, weight, bias = map(widen, (x, weight, bias))
    axes, count, channels = _outer_axes(x, weight), x.size // weight.size, weight.shape
    estimate = Sum(axes)(wide) / count
    deviation = wide - estimate
    correction = _if_finite(Sum(axes)(deviation) / count)
    var = Sum(axes)(Square.of(deviation)) / count - _if_finite(Square.of(correction))
    var = Maximum.of(var, 0)
    scale = of_channels(weight, x) * Rsqrt.of(var + eps)
    mean = estimate + correction
    y = (wide - mean) * scale + of_channels(bias, x)
    return y, reshape(mean, channels).astype(x.dtype), reshape(var, channels).astype(x.dtype)


def _if_finite(x: Node) -> Node:
    """Return a correction, with 0 for values that overflowed."""
    return where(Isfinite.of(x), x, 0)


class BatchNormBackward(Composed):
    """The gradients (dx, dweight, dbias) of the batch norm's y, from dy, x, weight, mean, var."""

    eps: float

    def infer(self, dy: Spec, x: Spec, weight: Spec, mean: Spec, var: Spec) -> tuple[Spec, ...]:
        if dy != x:
            raise ShapeError(f"x is {x}, but dy is {dy}")
        _check_channels(x, weight, mean, var)
        return x, weight, weight

    def expand(self, dy: Node, x: Node, weight: Node, mean: Node, var: Node) -> tuple[Node, ...]:
        dtype, axes, count = x.dtype, _outer_axes(x, weight), x.size // weight.size
        dy, x, weight, mean, var = map(widen, (dy, x, weight, mean, var))
        inverse_std = Rsqrt.of(of_channels(var, x) + self.eps)
        normal = (x - of_channels(mean, x)) * inverse_std
        dweight, dbias = Sum(axes)(dy * normal), Sum(axes)(dy)
        scale = of_channels(weight, x) * inverse_std
        dx = (dy - dbias / count - normal * (dweight / count)) * scale
        vectors = (reshape(v, weight.shape).astype(dtype) for v in (dweight, dbias))
        return dx.astype(dtype), *vectors


class BatchNormRelu(Composed):
    """BatchNorm with a relu after y, which the optimizer makes of the two: (y, mean, variance).

    residual  whether a fourth input, with the shape of x, is added before the relu
    """

    eps: float
    residual: bool

    def infer(self, x: Spec, weight: Spec, bias: Spec, *residual: Spec) -> tuple[Spec, ...]:
        if residual != (x,) * self.residual:
            raise ShapeError(f"x is {x}, but the residual is {' '.join(map(str, residual))}")
        return BatchNorm(self.eps).infer(x, weight, bias)

    def expand(self, x: Node, weight: Node, bias: Node, *residual: Node) -> tuple[Node, ...]:
        y, mean, var = _normalized(x, weight, bias, self.eps)
        for r in map(widen, residual):
            y = y + r
        return Relu.of(y).astype(x.dtype), mean, var


class BatchNormReluBackward(Composed):
    """The gradients (dx, dweight, dbias) of BatchNormRelu's y, from dy, y, x, weight, mean, var.

    residual  whether to return the residual's gradient, too: dy where y > 0, else 0
    """

    eps: float
    residual: bool

    def infer(self, dy: Spec, y: Spec, x: Spec, *vectors: Spec) -> tuple[Spec, ...]:
        if dy != x or y != x:
            raise ShapeError(f"x is {x}, but dy is {dy} and y is {y}")
        _check_channels(x, *vectors)
        return (x, vectors[0], vectors[0], *[x] * self.residual)

    def expand(self, dy: Node, y: Node, x: Node, *vectors: Node) -> tuple[Node, ...]:
        dz = where(y <= 0, 0, dy)
        return (*BatchNormBackward(self.eps).expand(dz, x, *vectors), *[dz] * self.residual)


class BatchNormInference(Composed):
    """Normalise x [n, c, ...] by the statistics `mean` and `var`."""

    eps: float

    def infer(self, x: Spec, weight: Spec, bias: Spec, mean: Spec, var: Spec) -> Spec:
        _check_channels(x, weight, bias, mean, var)
        return x

    def expand(self, x: Node, weight: Node, bias: Node, mean: Node, var: Node) -> tuple[Node]:
        dtype = x.dtype
        x, weight, bias, mean, var = map(widen, (x, weight, bias, mean, var))
        scale = of_channels(weight, x) * Rsqrt.of(of_channels(var, x) + self.eps)
        return (((x - of_channels(mean, x)) * scale + of_channels(bias, x)).astype(dtype),)


@builder
def batch_norm_with_statistics(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    world: Processes | None = None,
) -> tuple[Node, Node, Node]:
    """Return x normalised by its own statistics, its mean and its biased variance per channel.

    world  the processes over whose x, together, the statistics are computed

    >>> y, mean, variance = ops.batch_norm_with_statistics([[1.0], [3.0]])
    >>> cg.compile([], [mean, variance])()
    [array([2.]), array([1.])]
    """
    x, weight, bias = _affine(x, weight, bias)
    if world is not None and world.size > 1:
        mean, var = _statistics(x, world)
        return BatchNormInference(eps)(x, weight, bias, mean, var), mean, var
    y, mean, var = BatchNorm(eps).results(x, weight, bias)
    return y, mean, var


def _statistics(x: Node, world: World) -> tuple[Node, Node]:
    """Return mean and biased variance of each channel over the x of all processes.

    The statistics of the processes are merged as in Chan, Golub and LeVeque (1979), Updating
    formulae and a pairwise algorithm for computing sample variances: sums of squares would lose
    digits.
    """
    axes = tuple(a for a in range(x.ndim) if a != 1)
    wide = widen(x)
    gathered = AllGather(world)(stack([mean(wide, axes), var(wide, axes)]))
    parts = reshape(gathered, (world.size, 2, x.shape[1]))
    means, variances = parts[:, 0], parts[:, 1]
    global_mean = mean(means, 0)
    global_var = mean(variances + Square.of(means - global_mean), 0)
    return global_mean.astype(x.dtype), global_var.astype(x.dtype)


@builder
def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Node:
    """Return x (n, c, ...) normalised per channel.

    Training uses the statistics of the batch, evaluation the running ones, which may be None in
    training.  An expression cannot change the running statistics, so `momentum` has no effect: see
    `nn.BatchNorm2d.updates()`.

    >>> x = mg.input("x", (8, 16, 32, 32))
    >>> ops.batch_norm(x, ops.zeros((16,)), ops.ones((16,))).shape
    (8, 16, 32, 32)
    """
    if training:
        return batch_norm_with_statistics(x, weight, bias, eps)[0]
    if running_mean is None or running_var is None:
        raise GraphError("running_mean and running_var are needed unless `training` is True")
    x, weight, bias = _affine(x, weight, bias)
    return BatchNormInference(eps)(x, weight, bias, running_mean, running_var)


def _affine(x: Node, weight: Any, bias: Any) -> tuple[Node, Node, Node]:
    if x.ndim < 2:
        raise ShapeError(f"the input is (n, c, ...), not {x.shape}")
    channels = (x.shape[1],)
    ones = constant(np.ones(channels), x.dtype) if weight is None else weight
    if ones.ndim != 1:
        raise ShapeError(f"{x.shape[1]} channels take {channels}, not {ones.shape}")
    return x, ones, constant(np.zeros(channels), x.dtype) if bias is None else bias

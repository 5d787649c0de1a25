"""Normalisation over batches, layers and channels, and the softmax.

What has one value per channel is a vector [c] for x [n, c, ...].  In the layouts that the optimizer
chooses (see `minigraph.ops.layout`) x is [n, c / l, h, w, l], and such values are [c / l, l].
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import ml_dtypes
import numpy as np

from minigraph.arguments import Axis, Count
from minigraph.distributed.world import Processes, World
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import Array, Node, Op, Operand, Shape, Sizes, Spec, as_node, builder, constant
from minigraph.ops.activation import Relu
from minigraph.ops.arithmetic import Rsqrt, Square
from minigraph.ops.collective import AllGather
from minigraph.ops.comparison import where
from minigraph.ops.elementwise import common_dtype, kind, promote, widened
from minigraph.ops.exponential import Exp, Log
from minigraph.ops.padding import pad
from minigraph.ops.reduction import Max, Sum, mean, var
from minigraph.ops.shape import broadcast_to, normalize_axis, reshape, stack, stop_gradient


def _channel(v: Any, x: Any) -> Any:
    """View values of channels, [1, c, 1, ...], so that they broadcast against x."""
    return v.reshape((1, v.shape[0], *(1,) * (x.ndim - 1 - v.ndim), *v.shape[1:]))


def _outer_axes(x: Node | Array, v: Node | Array) -> tuple[int, ...]:
    """All axes but those of the channels."""
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
        raise DTypeError("input and vectors have one float dtype")


class BatchNorm(Op):
    """Normalise x by the batch's statistics: (y, mean, biased variance).

    y = (x - mean) / sqrt(variance + eps) * weight + bias (Ioffe and Szegedy, 2015).
    """

    eps: float

    composed = True

    def infer(self, x: Spec, weight: Spec, bias: Spec) -> tuple[Spec, Spec, Spec]:
        _check_channels(x, weight, bias)
        if x.size <= weight.size:
            raise ShapeError(f"statistics of {x.shape} need more than one value per channel")
        return x, weight, weight

    def forward(self, x: Array, weight: Array, bias: Array) -> tuple[Array, Array, Array]:
        axes = _outer_axes(x, weight)
        wide = widened(x)
        mean = wide.mean(axes)
        var = wide.var(axes)
        scale = widened(weight) / np.sqrt(var + self.eps)
        y = (wide - _channel(mean, x)) * _channel(scale, x) + _channel(widened(bias), x)
        return y.astype(x.dtype), mean.astype(x.dtype), var.astype(x.dtype)

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
            dxs.append(broadcast_to(_channel(dmean / count, x), x.shape))
        if dvar is not None:
            dxs.append((x - _channel(m, x)) * _channel(dvar * (2 / count), x))
        return functools.reduce(operator.add, dxs), dw, db


def _normalized(x: Node, weight: Node, bias: Node, eps: float) -> tuple[Node, Node, Node]:
    """Return what BatchNorm computes, but y in at least float32, not yet in the dtype of x."""
    wide, weight, bias = map(widened, (x, weight, bias))
    axes, count, channels = _outer_axes(x, weight), x.size // weight.size, weight.shape
    mean = Sum(axes)(wide) / count
    distance = wide - mean
    var = Sum(axes)(Square.of(distance)) / count
    y = distance * (_channel(weight, x) * Rsqrt.of(var + eps)) + _channel(bias, x)
    return y, reshape(mean, channels).astype(x.dtype), reshape(var, channels).astype(x.dtype)


class BatchNormBackward(Op):
    """The gradients (dx, dweight, dbias) of the batch norm's y, from dy, x, weight, mean, var."""

    eps: float

    composed = True

    def infer(self, dy: Spec, x: Spec, weight: Spec, mean: Spec, var: Spec) -> tuple[Spec, ...]:
        return x, weight, weight

    def forward(
        self, dy: Array, x: Array, weight: Array, mean: Array, var: Array
    ) -> tuple[Array, Array, Array]:
        axes = _outer_axes(x, weight)
        dtype, count = x.dtype, x.size // weight.size
        dy, x, weight, mean, var = map(widened, (dy, x, weight, mean, var))
        inverse = 1 / np.sqrt(var + self.eps)
        normal = (x - _channel(mean, x)) * _channel(inverse, x)
        dweight, dbias = (dy * normal).sum(axes), dy.sum(axes)
        rest = dy - _channel(dbias / count, x) - normal * _channel(dweight / count, x)
        dx = rest * _channel(weight * inverse, x)
        return dx.astype(dtype), dweight.astype(dtype), dbias.astype(dtype)

    def expand(self, dy: Node, x: Node, weight: Node, mean: Node, var: Node) -> tuple[Node, ...]:
        dtype, axes, count = x.dtype, _outer_axes(x, weight), x.size // weight.size
        dy, x, weight, mean, var = map(widened, (dy, x, weight, mean, var))
        inverse = Rsqrt.of(_channel(var, x) + self.eps)
        normal = (x - _channel(mean, x)) * inverse
        dweight, dbias = Sum(axes)(dy * normal), Sum(axes)(dy)
        dx = (dy - dbias / count - normal * (dweight / count)) * (_channel(weight, x) * inverse)
        vectors = (reshape(v, weight.shape).astype(dtype) for v in (dweight, dbias))
        return dx.astype(dtype), *vectors


class BatchNormRelu(Op):
    """BatchNorm with a relu after y, which the optimizer makes of the two: (y, mean, variance).

    residual  whether there is a fourth input, like x, that is added before the relu
    """

    eps: float
    residual: bool

    composed = True

    def infer(self, x: Spec, weight: Spec, bias: Spec, *residual: Spec) -> tuple[Spec, ...]:
        if residual != (x,) * self.residual:
            raise ShapeError(f"x is {x}, but what is added is {' '.join(map(str, residual))}")
        return BatchNorm(self.eps).infer(x, weight, bias)

    def forward(self, x: Array, weight: Array, bias: Array, *residual: Array) -> tuple[Array, ...]:
        y, mean, var = BatchNorm(self.eps).forward(x, weight, bias)
        for r in residual:
            y = y + r
        return Relu().forward(y), mean, var

    def expand(self, x: Node, weight: Node, bias: Node, *residual: Node) -> tuple[Node, ...]:
        y, mean, var = _normalized(x, weight, bias, self.eps)
        for r in map(widened, residual):
            y = y + r
        return Relu.of(y).astype(x.dtype), mean, var


class BatchNormReluBackward(Op):
    """The gradients (dx, dweight, dbias) of BatchNormRelu's y, from dy, y, x, weight, mean, var.

    residual  whether to return the residual's too: dy, but 0 where y <= 0
    """

    eps: float
    residual: bool

    composed = True

    def infer(self, dy: Spec, y: Spec, x: Spec, *vectors: Spec) -> tuple[Spec, ...]:
        if dy != x or y != x:
            raise ShapeError(f"x is {x}, but dy is {dy} and y is {y}")
        _check_channels(x, *vectors)
        return (x, vectors[0], vectors[0], *[x] * self.residual)

    def forward(self, dy: Array, y: Array, x: Array, *vectors: Array) -> tuple[Array, ...]:
        dz = np.where(y <= 0, np.zeros_like(dy, shape=()), dy)
        return (*BatchNormBackward(self.eps).forward(dz, x, *vectors), *[dz] * self.residual)

    def expand(self, dy: Node, y: Node, x: Node, *vectors: Node) -> tuple[Node, ...]:
        dz = where(y <= 0, 0, dy)
        return (*BatchNormBackward(self.eps).expand(dz, x, *vectors), *[dz] * self.residual)


class BatchNormInference(Op):
    """Normalise x [n, c, ...] by given statistics."""

    eps: float

    composed = True

    def infer(self, x: Spec, weight: Spec, bias: Spec, mean: Spec, var: Spec) -> Spec:
        _check_channels(x, weight, bias, mean, var)
        return x

    def forward(self, x: Array, weight: Array, bias: Array, mean: Array, var: Array) -> Array:
        scale = widened(weight) / np.sqrt(widened(var) + self.eps)
        y = (widened(x) - _channel(widened(mean), x)) * _channel(scale, x) + _channel(
            widened(bias), x
        )
        return y.astype(x.dtype)

    def expand(self, x: Node, weight: Node, bias: Node, mean: Node, var: Node) -> tuple[Node]:
        dtype = x.dtype
        x, weight, bias, mean, var = map(widened, (x, weight, bias, mean, var))
        scale = _channel(weight, x) * Rsqrt.of(_channel(var, x) + self.eps)
        return (((x - _channel(mean, x)) * scale + _channel(bias, x)).astype(dtype),)


class LocalResponseNorm(Op):
    """x / (k + alpha * mean of x * x over `size` neighbouring channels) ** beta.

    As in `torch.nn.functional`; "AlexNet" (Krizhevsky et al., 2012) has the sum for the mean.
    """

    size: int
    alpha: float
    beta: float
    k: float

    def infer(self, x: Spec) -> Spec:
        if len(x.shape) < 3:
            raise ShapeError(f"the input is (n, c, ...) with at least 3 axes, not {x.shape}")
        if kind(x.dtype) != "f":
            raise DTypeError(f"the input has a float dtype, not {x.dtype.name}")
        return x

    def _widths(self, ndim: int) -> tuple[tuple[int, int], ...]:
        """How many channels of zeros come before and after those of x."""
        before = self.size // 2
        return (0, 0), (before, self.size - 1 - before), *((0, 0),) * (ndim - 2)

    def forward(self, x: Array) -> Array:
        wide = widened(x)
        padded = np.pad(wide * wide, self._widths(x.ndim))
        near = np.lib.stride_tricks.sliding_window_view(padded, self.size, 1)
        y = wide / (near.mean(-1) * self.alpha + self.k) ** self.beta
        return y.astype(x.dtype)

    def expand(self, x: Node) -> tuple[Node]:
        wide = widened(x)
        squares = pad(wide * wide, self._widths(x.ndim))
        total = squares[:, : x.shape[1]]
        for i in range(1, self.size):
            total = total + squares[:, i : i + x.shape[1]]
        y = wide / (total * (self.alpha / self.size) + self.k) ** self.beta
        return (y.astype(x.dtype),)


class AlongAxis(Op):
    """A function of the vectors along an axis; the result is like x."""

    axis: int

    composed = True

    def infer(self, x: Spec) -> Spec:
        return x


class Softmax(AlongAxis):
    """exp(x) over its sum along `axis`."""

    def forward(self, x: Array) -> Array:
        wide = widened(x)
        e = np.exp(wide - wide.max(self.axis, keepdims=True))
        return (e / e.sum(self.axis, keepdims=True)).astype(x.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        weighted = dy * y
        return (weighted - y * Sum((self.axis,))(weighted),)

    def expand(self, x: Node) -> tuple[Node]:
        wide = widened(x)
        e = Exp.of(wide - stop_gradient(Max((self.axis,))(wide)))
        return ((e / Sum((self.axis,))(e)).astype(x.dtype),)


class LogSoftmax(AlongAxis):
    """x - log(sum(exp(x))) along `axis`."""

    def forward(self, x: Array) -> Array:
        wide = widened(x)
        shifted = wide - wide.max(self.axis, keepdims=True)
        y = shifted - np.log(np.exp(shifted).sum(self.axis, keepdims=True))
        return y.astype(x.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy - Exp.of(y) * Sum((self.axis,))(dy),)

    def expand(self, x: Node) -> tuple[Node]:
        wide = widened(x)
        shifted = wide - stop_gradient(Max((self.axis,))(wide))
        return ((shifted - Log.of(Sum((self.axis,))(Exp.of(shifted)))).astype(x.dtype),)


@builder
def batch_norm_with_statistics(
    x: Operand,
    weight: Operand | None = None,
    bias: Operand | None = None,
    eps: float = 1e-5,
    world: Processes | None = None,
) -> tuple[Node, Node, Node]:
    """Return x normalised by its own statistics, its mean and its biased variance per channel.

    world  whose processes' x, together, the statistics are of

    >>> y, mean, variance = ops.batch_norm_with_statistics([[1.0], [3.0]])
    >>> cg.compile([], [mean, variance])()
    [array([2.]), array([1.])]
    """
    x, weight, bias = _affine(as_node(x), weight, bias)
    if world is not None and world.size > 1:
        mean, var = _statistics(x, world)
        return BatchNormInference(eps)(x, weight, bias, mean, var), mean, var
    y, mean, var = BatchNorm(eps).results(x, weight, bias)
    return y, mean, var


def _statistics(x: Node, world: World) -> tuple[Node, Node]:
    """Return mean and biased variance of each channel of the x of all processes.

    Those of each process are merged as in Chan, Golub and LeVeque (1979), Updating formulae and a
    pairwise algorithm for computing sample variances: sums of squares would lose digits.
    """
    axes = tuple(a for a in range(x.ndim) if a != 1)
    wide = widened(x)
    of_all = AllGather(world)(stack([mean(wide, axes), var(wide, axes)]))
    parts = reshape(of_all, (world.size, 2, x.shape[1]))
    means, variances = parts[:, 0], parts[:, 1]
    center = mean(means, 0)
    spread = mean(variances + Square.of(means - center), 0)
    return center.astype(x.dtype), spread.astype(x.dtype)


@builder
def batch_norm(
    x: Operand,
    running_mean: Operand | None,
    running_var: Operand | None,
    weight: Operand | None = None,
    bias: Operand | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Node:
    """Return x (n, c, ...) normalised per channel.

    Training uses the statistics of the batch, evaluation the running ones, which may be None in
    training.  An expression cannot change those, so `momentum` has no effect here: see
    `nn.BatchNorm2d.updates()`.

    >>> x = mg.input("x", (8, 16, 32, 32))
    >>> ops.batch_norm(x, ops.zeros((16,)), ops.ones((16,))).shape
    (8, 16, 32, 32)
    """
    if training:
        return batch_norm_with_statistics(x, weight, bias, eps)[0]
    if running_mean is None or running_var is None:
        raise GraphError("running_mean and running_var are needed unless `training` is True")
    x, weight, bias = _affine(as_node(x), weight, bias)
    return BatchNormInference(eps)(x, weight, bias, as_node(running_mean), as_node(running_var))


def _affine(x: Node, weight: Any, bias: Any) -> tuple[Node, Node, Node]:
    if x.ndim < 2:
        raise ShapeError(f"the input is (n, c, ...), not {x.shape}")
    channels = (x.shape[1],)
    ones = constant(np.ones(channels), x.dtype) if weight is None else as_node(weight)
    if ones.ndim != 1:
        raise ShapeError(f"{x.shape[1]} channels take {channels}, not {ones.shape}")
    return x, ones, constant(np.zeros(channels), x.dtype) if bias is None else as_node(bias)


@builder
def layer_norm(
    x: Operand,
    normalized_shape: Sizes,
    weight: Operand | None = None,
    bias: Operand | None = None,
    eps: float = 1e-5,
) -> Node:
    """Return x normalised over its last axes, which are `normalized_shape` (Ba et al., 2016).

    `weight` and `bias` have that shape too, else ShapeError.

    >>> cg.compile([], ops.layer_norm([[1.0, 2.0, 3.0]], 3))()
    array([[-1.22473569,  0.        ,  1.22473569]])
    """
    (x,) = promote(x, floating=True)
    shape = normalized_shape
    axes = _last_axes(x, shape)
    wide = widened(x)
    distance = wide - mean(wide, axes, keepdims=True)
    y = distance * Rsqrt.of(mean(distance * distance, axes, keepdims=True) + eps)
    vectors = {"weight": weight, "bias": bias}
    given = {name: as_node(v) for name, v in vectors.items() if v is not None}
    for name, v in given.items():
        if v.shape != shape:
            raise ShapeError(f"the {name} has shape {v.shape}, not {shape}")
    if "weight" in given:
        y = y * widened(given["weight"])
    if "bias" in given:
        y = y + widened(given["bias"])
    return y.astype(common_dtype(x, *given.values()))


@builder
def rms_norm(
    x: Operand,
    normalized_shape: Sizes,
    weight: Operand | None = None,
    eps: float | None = None,
) -> Node:
    """Return x over the root of its mean square over its last axes (Zhang and Sennrich, 2019).

    These are `normalized_shape`, and `weight` has that shape, else ShapeError.  eps is added to
    the mean square; None: the spacing of x's dtype at 1.

    >>> cg.compile([], ops.rms_norm([[3.0, 4.0]], 2))()
    array([[0.84852814, 1.13137085]])
    """
    (x,) = promote(x, floating=True)
    axes = _last_axes(x, normalized_shape)
    wide = widened(x)
    if eps is None:
        eps = float(ml_dtypes.finfo(x.dtype).eps)  # type: ignore[no-untyped-call]
    y = wide * Rsqrt.of(mean(wide * wide, axes, keepdims=True) + eps)
    if weight is None:
        return y.astype(x.dtype)
    weight = as_node(weight)
    if weight.shape != normalized_shape:
        raise ShapeError(f"the weight has shape {weight.shape}, not {normalized_shape}")
    return (y * widened(weight)).astype(common_dtype(x, weight))


@builder
def group_norm(
    x: Operand,
    num_groups: Count,
    weight: Operand | None = None,
    bias: Operand | None = None,
    eps: float = 1e-5,
) -> Node:
    """Return x (n, c, ...) with each group of channels normalised (Wu and He, 2018).

    `weight` and `bias` are (c,).  ShapeError where the groups do not divide the channels.

    >>> ops.group_norm(mg.input("x", (8, 16, 32, 32)), num_groups=4).shape
    (8, 16, 32, 32)
    """
    (x,) = promote(x, floating=True)
    if x.ndim < 2 or x.shape[1] % num_groups or not x.size:
        raise ShapeError(f"x has shape {x.shape}; its channels make no {num_groups} groups")
    wide = widened(x)
    groups = reshape(wide, (x.shape[0], num_groups, x.size // x.shape[0] // num_groups))
    distance = groups - mean(groups, -1, keepdims=True)
    normal = distance * Rsqrt.of(mean(distance * distance, -1, keepdims=True) + eps)
    y = reshape(normal, x.shape)
    vectors = {"weight": weight, "bias": bias}
    given = {name: as_node(v) for name, v in vectors.items() if v is not None}
    for name, v in given.items():
        if v.shape != (x.shape[1],):
            raise ShapeError(f"the {name} has shape {v.shape}; {x.shape[1]} channels take one each")
    if "weight" in given:
        y = y * _channel(widened(given["weight"]), x)
    if "bias" in given:
        y = y + _channel(widened(given["bias"]), x)
    return y.astype(common_dtype(x, *given.values()))


def _last_axes(x: Node, shape: Shape) -> tuple[int, ...]:
    """Return which axes of x have `shape`: the last; ShapeError if they do not, or are empty."""
    if not shape or x.shape[-len(shape) :] != shape or 0 in shape:
        raise ShapeError(f"the last axes of {x.shape} are not {shape}")
    return tuple(range(x.ndim - len(shape), x.ndim))


@builder
def local_response_norm(
    x: Operand, size: Count, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Node:
    """Return x / (k + alpha * mean of x * x over `size` neighbouring channels) ** beta.

    x is (n, c, ...), of floats; as `torch.nn.functional.local_response_norm`.

    >>> ops.local_response_norm(mg.input("x", (8, 16, 32, 32)), size=5).shape
    (8, 16, 32, 32)
    """
    return LocalResponseNorm(size, alpha, beta, k)(as_node(x))


@builder
def softmax(x: Operand, axis: Axis = -1) -> Node:
    """Return exp(x) over its sum along `axis`.

    >>> cg.compile([], ops.softmax([[0.0, 1.0]]))()
    array([[0.26894142, 0.73105858]])
    """
    (x,) = promote(x, floating=True)
    return Softmax(_axis_with_elements(x, axis))(x)


@builder
def log_softmax(x: Operand, axis: Axis = -1) -> Node:
    """Return log(softmax(x)) along `axis`, accurate where the softmax is small.

    >>> cg.compile([], ops.log_softmax([[0.0, 1.0]]))()
    array([[-1.31326169, -0.31326169]])
    """
    (x,) = promote(x, floating=True)
    return LogSoftmax(_axis_with_elements(x, axis))(x)


def _axis_with_elements(x: Node, axis: int) -> int:
    axis = normalize_axis(axis, x.ndim)
    if not x.shape[axis]:
        raise ShapeError(f"axis {axis} of shape {x.shape} has no elements")
    return axis

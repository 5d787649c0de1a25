"""Normalisation over batches, layers and channels, and the softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minigraph.dtypes import Array
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import Node, Op, Spec, as_node, constant
from minigraph.ops.arithmetic import rsqrt, square
from minigraph.ops.builder import builder
from minigraph.ops.elementwise import kind, promote
from minigraph.ops.exponential import exp
from minigraph.ops.reduction import Max, Sum, logsumexp, mean, sum
from minigraph.ops.shape import (
    as_shape,
    normalize_axis,
    pad,
    reshape,
    stop_gradient,
)


def _channel(v: Array, x: Array) -> Array:
    """View a vector over channels so that it broadcasts against x [n, c, ...]."""
    return v.reshape(-1, *(1,) * (x.ndim - 2))


def _wide(x: Array) -> Array:
    """x, in float32 where its dtype is too small for statistics."""
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)


def _check_channels(x: Spec, *vectors: Spec) -> None:
    if len(x.shape) < 2:
        raise ShapeError(f"the input is (n, c, ...), not {x.shape}")
    for v in vectors:
        if v.shape != (x.shape[1],):
            raise ShapeError(f"{x.shape[1]} channels take ({x.shape[1]},), not {v.shape}")
    if len({v.dtype for v in (x, *vectors)}) > 1 or kind(x.dtype) != "f":
        raise DTypeError("input and vectors have one float dtype")


@dataclass(frozen=True)
class BatchNorm(Op):
    """Normalise x [n, c, ...] by the batch's statistics: (y, mean [c], biased variance [c]).

    y = (x - mean) / sqrt(variance + eps) * weight + bias (Ioffe and Szegedy, 2015).
    """

    eps: float

    def infer(self, x: Spec, weight: Spec, bias: Spec) -> tuple[Spec, Spec, Spec]:
        _check_channels(x, weight, bias)
        if x.size <= x.shape[1]:
            raise ShapeError(f"statistics of {x.shape} need more than one value per channel")
        return x, weight, weight

    def forward(self, x: Array, weight: Array, bias: Array) -> tuple[Array, Array, Array]:
        axes = (0, *range(2, x.ndim))
        wide = _wide(x)
        mean = wide.mean(axes)
        var = wide.var(axes)
        scale = _wide(weight) / np.sqrt(var + self.eps)
        y = (wide - _channel(mean, x)) * _channel(scale, x) + _channel(_wide(bias), x)
        return y.astype(x.dtype), mean.astype(x.dtype), var.astype(x.dtype)

    def expand(self, x: Node, weight: Node, bias: Node) -> tuple[Node, Node, Node]:
        axes = (0, *range(2, x.ndim))
        m = mean(x, axes, keepdims=True)
        v = mean(square(x - m), axes, keepdims=True)
        y = (x - m) * rsqrt(v + self.eps) * _vector(weight, x) + _vector(bias, x)
        return y, reshape(m, weight.shape), reshape(v, weight.shape)

    def grad(
        self, dys: tuple[Node, Node, Node], ys: tuple[Node, Node, Node], x: Node, w: Node, b: Node
    ) -> tuple[Node, Node, Node]:
        dy, dmean, dvar = dys
        _, m, v = ys
        dx, dw, db = BatchNormBackward(self.eps).results(dy, x, w, m, v)
        count = x.size // x.shape[1]
        if not _is_zero(dmean):
            dx = dx + _vector(dmean / count, x)
        if not _is_zero(dvar):
            dx = dx + (x - _vector(m, x)) * _vector(dvar * (2 / count), x)
        return dx, dw, db


@dataclass(frozen=True)
class BatchNormBackward(Op):
    """The gradients (dx, dweight, dbias) of the batch norm's y, from dy, x, weight, mean, var."""

    eps: float

    def infer(self, dy: Spec, x: Spec, weight: Spec, mean: Spec, var: Spec) -> tuple[Spec, ...]:
        return x, weight, weight

    def forward(
        self, dy: Array, x: Array, weight: Array, mean: Array, var: Array
    ) -> tuple[Array, Array, Array]:
        axes = (0, *range(2, x.ndim))
        dtype, count = x.dtype, x.size // x.shape[1]
        dy, x, weight, mean, var = map(_wide, (dy, x, weight, mean, var))
        inverse = 1 / np.sqrt(var + self.eps)
        normal = (x - _channel(mean, x)) * _channel(inverse, x)
        dweight, dbias = (dy * normal).sum(axes), dy.sum(axes)
        rest = dy - _channel(dbias / count, x) - normal * _channel(dweight / count, x)
        dx = rest * _channel(weight * inverse, x)
        return dx.astype(dtype), dweight.astype(dtype), dbias.astype(dtype)

    def expand(self, dy: Node, x: Node, weight: Node, m: Node, v: Node) -> tuple[Node, Node, Node]:
        axes = (0, *range(2, x.ndim))
        count = x.size // x.shape[1]
        # mean and var are inputs here, but they depend on x: say so, for second derivatives.
        inverse = rsqrt(v + self.eps)
        normal = (x - _vector(m, x)) * _vector(inverse, x)
        dweight, dbias = sum(dy * normal, axes), sum(dy, axes)
        rest = dy - _vector(dbias / count, x) - normal * _vector(dweight / count, x)
        return rest * _vector(weight * inverse, x), dweight, dbias


@dataclass(frozen=True)
class BatchNormInference(Op):
    """Normalise x [n, c, ...] by given statistics."""

    eps: float

    def infer(self, x: Spec, weight: Spec, bias: Spec, mean: Spec, var: Spec) -> Spec:
        _check_channels(x, weight, bias, mean, var)
        return x

    def forward(self, x: Array, weight: Array, bias: Array, mean: Array, var: Array) -> Array:
        scale = _wide(weight) / np.sqrt(_wide(var) + self.eps)
        y = (_wide(x) - _channel(_wide(mean), x)) * _channel(scale, x) + _channel(_wide(bias), x)
        return y.astype(x.dtype)

    def expand(self, x: Node, weight: Node, bias: Node, mean: Node, var: Node) -> tuple[Node]:
        scale = weight * rsqrt(var + self.eps)
        return ((x - _vector(mean, x)) * _vector(scale, x) + _vector(bias, x),)


@dataclass(frozen=True)
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

    def forward(self, x: Array) -> Array:
        wide = _wide(x)
        before = self.size // 2
        widths = ((0, 0), (before, self.size - 1 - before), *((0, 0),) * (x.ndim - 2))
        near = np.lib.stride_tricks.sliding_window_view(np.pad(wide * wide, widths), self.size, 1)
        y = wide / (near.mean(-1) * self.alpha + self.k) ** self.beta
        return y.astype(x.dtype)

    def expand(self, x: Node) -> tuple[Node]:
        before = self.size // 2
        widths = ((0, 0), (before, self.size - 1 - before), *((0, 0),) * (x.ndim - 2))
        squares = pad(x * x, widths)
        total = squares[:, : x.shape[1]]
        for i in range(1, self.size):
            total = total + squares[:, i : i + x.shape[1]]
        return (x / (total * (self.alpha / self.size) + self.k) ** self.beta,)


@dataclass(frozen=True)
class Softmax(Op):
    """exp(x) over its sum along `axis`."""

    axis: int

    def infer(self, x: Spec) -> Spec:
        return x

    def forward(self, x: Array) -> Array:
        wide = _wide(x)
        e = np.exp(wide - wide.max(self.axis, keepdims=True))
        return (e / e.sum(self.axis, keepdims=True)).astype(x.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        weighted = dy * y
        return (weighted - y * Sum((self.axis,))(weighted),)

    def expand(self, x: Node) -> tuple[Node]:
        e = exp(x - stop_gradient(Max((self.axis,))(x)))
        return (e / Sum((self.axis,))(e),)


@dataclass(frozen=True)
class LogSoftmax(Op):
    """x - log(sum(exp(x))) along `axis`."""

    axis: int

    def infer(self, x: Spec) -> Spec:
        return x

    def forward(self, x: Array) -> Array:
        wide = _wide(x)
        shifted = wide - wide.max(self.axis, keepdims=True)
        y = shifted - np.log(np.exp(shifted).sum(self.axis, keepdims=True))
        return y.astype(x.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy - exp(y) * Sum((self.axis,))(dy),)

    def expand(self, x: Node) -> tuple[Node]:
        return (x - logsumexp(x, self.axis, keepdims=True),)


def _vector(v: Node, x: Node) -> Node:
    """View a vector over channels so that it broadcasts against x [n, c, ...]."""
    return reshape(v, (-1, *(1,) * (x.ndim - 2)) if v.size else (0, *(1,) * (x.ndim - 2)))


def _is_zero(x: Node) -> bool:
    """Whether x is the constant that `mg.grad` gives for results that nothing depends on."""
    from_constant = x.inputs[0] if x.op.name == "broadcast_to" else x
    value = getattr(from_constant.op, "value", None)
    return value is not None and not np.any(value)


@builder
def batch_norm_with_statistics(
    x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[Node, Node, Node]:
    """Return x normalised by its own statistics, its mean and its biased variance per channel."""
    x, weight, bias = _affine(as_node(x), weight, bias)
    y, mean, var = BatchNorm(float(eps)).results(x, weight, bias)
    return y, mean, var


@builder
def batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Node:
    """Return x (n, c, ...) normalised per channel.

    In training by the batch's statistics, else by the running ones.  An expression cannot change
    those: `nn.BatchNorm2d` has the update among its `updates()`, which is what `momentum` is for.
    """
    if training:
        return batch_norm_with_statistics(x, weight, bias, eps)[0]
    x, weight, bias = _affine(as_node(x), weight, bias)
    return BatchNormInference(float(eps))(
        x, weight, bias, as_node(running_mean), as_node(running_var)
    )


def _affine(x: Node, weight: Any, bias: Any) -> tuple[Node, Node, Node]:
    if x.ndim < 2:
        raise ShapeError(f"the input is (n, c, ...), not {x.shape}")
    channels = (x.shape[1],)
    ones = constant(np.ones(channels), x.dtype) if weight is None else as_node(weight)
    return x, ones, constant(np.zeros(channels), x.dtype) if bias is None else as_node(bias)


@builder
def layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Node:
    """Return x normalised over its last axes, which are `normalized_shape` (Ba et al., 2016)."""
    (x,) = promote(x, floating=True)
    shape = as_shape(normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape or 0 in shape:
        raise ShapeError(f"the last axes of {x.shape} are not {normalized_shape}")
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    distance = x - mean(x, axes, keepdims=True)
    y = distance * rsqrt(mean(distance * distance, axes, keepdims=True) + eps)
    for name, v in (("weight", weight), ("bias", bias)):
        if v is not None and as_node(v).shape != shape:
            raise ShapeError(f"the {name} has shape {as_node(v).shape}, not {shape}")
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@builder
def local_response_norm(
    x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Node:
    """Return x over a power of the mean square of `size` neighbouring channels."""
    if not isinstance(size, int) or size < 1:
        raise GraphError(f"size is an int >= 1, not {size!r}")
    return LocalResponseNorm(size, float(alpha), float(beta), float(k))(as_node(x))


@builder
def softmax(x: Any, axis: int = -1) -> Node:
    """Return exp(x) over its sum along `axis`."""
    (x,) = promote(x, floating=True)
    return Softmax(_filled_axis(x, axis))(x)


@builder
def log_softmax(x: Any, axis: int = -1) -> Node:
    """Return log(softmax(x)) along `axis`, accurate where the softmax is small."""
    (x,) = promote(x, floating=True)
    return LogSoftmax(_filled_axis(x, axis))(x)


def _filled_axis(x: Node, axis: int) -> int:
    axis = normalize_axis(axis, x.ndim)
    if not x.shape[axis]:
        raise ShapeError(f"axis {axis} of shape {x.shape} has no elements")
    return axis

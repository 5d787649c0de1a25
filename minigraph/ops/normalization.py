"""Normalisation of each example alone: by layer, group of channels, neighbouring channels, norm."""

from __future__ import annotations

import operator
from typing import Any

import ml_dtypes

from minigraph.arguments import Axis, Count, Scalar
from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import Expanded, Node, Operand, Shape, Sizes, Spec, Tensor, builder
from minigraph.ops.arithmetic import Rsqrt
from minigraph.ops.comparison import Maximum
from minigraph.ops.elementwise import (
    FloatTensor,
    broadcast_shapes,
    common_dtype,
    kind,
    promote,
    widen,
)
from minigraph.ops.padding import pad
from minigraph.ops.reduction import Sum, mean, norm
from minigraph.ops.shape import broadcast_to, reshape


class LocalResponseNorm(Expanded):
    """x / (k + alpha * mean of x * x over `size` neighbouring channels) ** beta.

    As in `torch.nn.functional`; Krizhevsky et al. (2012, "AlexNet") take the sum, not the mean.
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

    def expand(self, x: Node) -> tuple[Node]:
        wide = widen(x)
        before = self.size // 2  # channels of zeros; as many or one less come after x
        widths = (0, 0), (before, self.size - 1 - before), *((0, 0),) * (x.ndim - 2)
        squares = pad(wide * wide, widths)
        terms = [squares[:, i : i + x.shape[1]] for i in range(self.size)]
        while len(terms) > 1:
            odd = terms[len(terms) - len(terms) % 2 :]
            terms = [*map(operator.add, terms[::2], terms[1::2]), *odd]
        y = wide / (terms[0] * (self.alpha / self.size) + self.k) ** self.beta
        return (y.astype(x.dtype),)


@builder
def layer_norm(
    x: FloatTensor,
    normalized_shape: Sizes,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Node:
    """Return x normalised over its last axes, which are `normalized_shape` (Ba et al., 2016).

    `weight` and `bias` have that shape too, else ShapeError.

    >>> cg.compile([], ops.layer_norm([[1.0, 2.0, 3.0]], 3))()
    array([[-1.22473569,  0.        ,  1.22473569]])
    """
    axes = _last_axes(x, normalized_shape)
    wide = widen(x)
    y = _scaled(wide - mean(wide, axes, keepdims=True), axes, eps)
    return _affine(x, y, weight, bias, normalized_shape)


def _scaled(x: Node, axes: tuple[int, ...], eps: float) -> Node:
    """Return x divided by the root of its mean square over `axes`."""
    return x * Rsqrt.of(mean(x * x, axes, keepdims=True) + eps)


@builder
def rms_norm(
    x: FloatTensor, normalized_shape: Sizes, weight: Tensor | None = None, eps: float | None = None
) -> Node:
    """Return x divided by its root mean square over its last axes (Zhang and Sennrich, 2019).

    The last axes are `normalized_shape`, and `weight` has that shape, else ShapeError.  eps is
    added to the mean square; None: the spacing of x's dtype at 1.

    >>> cg.compile([], ops.rms_norm([[3.0, 4.0]], 2))()
    array([[0.84852814, 1.13137085]])
    """
    axes = _last_axes(x, normalized_shape)
    if eps is None:
        eps = float(ml_dtypes.finfo(x.dtype).eps)  # type: ignore[no-untyped-call]
    return _affine(x, _scaled(widen(x), axes, eps), weight, None, normalized_shape)


@builder
def group_norm(
    x: FloatTensor,
    num_groups: Count,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Node:
    """Return x (n, c, ...) with each group of channels normalised (Wu and He, 2018).

    `weight` and `bias` are (c,).  ShapeError if the groups do not divide the channels.

    >>> ops.group_norm(mg.input("x", (8, 16, 32, 32)), num_groups=4).shape
    (8, 16, 32, 32)
    """
    if x.ndim < 2 or x.shape[1] % num_groups:
        raise ShapeError(f"x of shape {x.shape} cannot be divided into {num_groups} groups")
    channels, sizes = x.shape[1], x.shape[2:]
    split = (num_groups, channels // num_groups)
    groups = reshape(widen(x), (x.shape[0], *split, *sizes))
    axes = tuple(range(2, groups.ndim))
    normal = _scaled(groups - mean(groups, axes, keepdims=True), axes, eps)
    # In the shape of groups, because no kernel computes two shapes together.
    view = (*split, *(1 for _ in sizes))
    return reshape(_affine(x, normal, weight, bias, (channels,), view), x.shape)


def _affine(
    x: Node, y: Node, weight: Any, bias: Any, shape: Shape, view: Shape | None = None
) -> Node:
    """Return y * weight + bias, each optional, in the common dtype of weight, bias and x.

    y      computed from x in a wider dtype
    shape  of weight and bias; another one is a ShapeError
    view   the shape in which they broadcast against y; None: their own
    """
    vectors = {name: v for name, v in (("weight", weight), ("bias", bias)) if v is not None}
    for name, v in vectors.items():
        if v.shape != shape:
            raise ShapeError(f"the {name} has shape {v.shape}, not {shape}")
        wide = reshape(widen(v), view or shape)
        y = y * wide if name == "weight" else y + wide
    return y.astype(common_dtype(x, *vectors.values()))


def _last_axes(x: Node, shape: Shape) -> tuple[int, ...]:
    """Return the last axes of x, whose sizes are `shape`; ShapeError if not."""
    if not shape or x.shape[-len(shape) :] != shape:
        raise ShapeError(f"the last axes of {x.shape} are not {shape}")
    return tuple(range(x.ndim - len(shape), x.ndim))


@builder
def normalize(x: FloatTensor, p: Scalar = 2, axis: Axis = 1, eps: float = 1e-12) -> Node:
    """Return x / max(norm(x), eps) along `axis`.

    p  the `ord` of `norm`

    >>> cg.compile([], ops.normalize([[3.0, 4.0]]))()
    array([[0.6, 0.8]])
    """
    wide = widen(x)
    return (wide / Maximum.of(norm(wide, p, axis, keepdims=True), eps)).astype(x.dtype)


@builder
def cosine_similarity(x1: Operand, x2: Operand, axis: Axis = 1, eps: float = 1e-8) -> Node:
    """Return the cosine of the angles between vectors along `axis`; the arrays broadcast.

    A norm below `eps` counts as `eps`.

    >>> cg.compile([], ops.cosine_similarity([[3.0, 4.0]], [[4.0, 3.0]]))()
    array([0.96])
    """
    xs = promote(x1, x2, floating=True)
    shape = broadcast_shapes(*(x.shape for x in xs))
    first, second = (normalize(widen(broadcast_to(x, shape)), 2, axis, eps) for x in xs)
    return Sum.of(first * second, axis).astype(xs[0].dtype)


@builder
def local_response_norm(
    x: Tensor, size: Count, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Node:
    """Return x / (k + alpha * mean of x * x over `size` neighbouring channels) ** beta.

    x is (n, c, ...), of floats; as `torch.nn.functional.local_response_norm`.

    >>> ops.local_response_norm(mg.input("x", (8, 16, 32, 32)), size=5).shape
    (8, 16, 32, 32)
    """
    return LocalResponseNorm(size, alpha, beta, k)(x)

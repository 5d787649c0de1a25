"""Softmax, its logarithm, and the attention whose weights it gives."""

from __future__ import annotations

import math

import numpy as np

from minigraph.arguments import Axis, Probability
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import Composed, Node, Operand, Spec, Tensor, builder
from minigraph.ops import comparison
from minigraph.ops.comparison import Maximum
from minigraph.ops.creation import lower_triangle
from minigraph.ops.elementwise import FloatTensor, kind, promote, widen
from minigraph.ops.exponential import Exp, Log
from minigraph.ops.matmul import matmul
from minigraph.ops.random import dropout
from minigraph.ops.reduction import Max, Sum
from minigraph.ops.shape import normalize_axis, permute_dims, stop_gradient


class AlongAxis(Composed):
    """A function of the vectors along an axis; the result is like x."""

    axis: int

    def infer(self, x: Spec) -> Spec:
        if not x.shape[self.axis]:
            raise ShapeError(f"axis {self.axis} of shape {x.shape} has no elements")
        return x


class Softmax(AlongAxis):
    """exp(x) over its sum along `axis`.

    masked  whether a vector of nothing but -inf gives zeros, not NaN
    """

    masked: bool = False

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        weighted = dy * y
        return (weighted - y * Sum((self.axis,))(weighted),)

    def expand(self, x: Node) -> tuple[Node]:
        wide = widen(x)
        peak = Max((self.axis,))(wide)
        if self.masked:  # neither changes another vector: its largest element adds 1 to the sum
            peak = Maximum.of(peak, float(np.finfo(wide.dtype).min))
        e = Exp.of(wide - stop_gradient(peak))
        total = Sum((self.axis,))(e)
        return ((e / (Maximum.of(total, 1) if self.masked else total)).astype(x.dtype),)


class LogSoftmax(AlongAxis):
    """x - log(sum(exp(x))) along `axis`."""

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy - Exp.of(y) * Sum((self.axis,))(dy),)

    def expand(self, x: Node) -> tuple[Node]:
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
    taken = comparison.where(where, x, -np.inf)
    if taken.shape != x.shape:
        raise ShapeError(f"where of {where.shape} does not broadcast to {x.shape}")
    return Softmax(axis, masked=True)(taken)


@builder
def log_softmax(x: FloatTensor, axis: Axis = -1) -> Node:
    """Return log(softmax(x)) along `axis`, accurate for small values of the softmax.

    >>> cg.compile([], ops.log_softmax([[0.0, 1.0]]))()
    array([[-1.31326169, -0.31326169]])
    """
    return LogSoftmax(normalize_axis(axis, x.ndim))(x)


@builder
def scaled_dot_product_attention(
    query: Operand,
    key: Operand,
    value: Operand,
    attn_mask: Tensor | None = None,
    dropout_p: Probability = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Node:
    """Return softmax(query @ key.T * scale) @ value (Vaswani et al., 2017).

    query (..., l, e), key (..., s, e), value (..., s, v): (..., l, v); leading axes broadcast.

    A query whose keys are all masked gets zeros.

    attn_mask  broadcasts to (..., l, s): bools (False masks a key), or floats to be added
    dropout_p  share of the weights that are dropped
    is_causal  whether to mask the keys after each query's position; excludes attn_mask
    scale      None: 1 / sqrt(e)

    >>> q, k, v = (mg.input(name, (2, 8, 16, 32)) for name in "qkv")  # n, heads, tokens, width
    >>> ops.scaled_dot_product_attention(q, k, v, is_causal=True).shape
    (2, 8, 16, 32)
    """
    query, key, value = promote(query, key, value, floating=True)
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ShapeError("query, key and value are (..., length, size)")
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"query of shape {query.shape}, key of {key.shape} and value of {value.shape}: the "
            "first two have vectors of one size, and there is a value for each key"
        )
    if is_causal and attn_mask is not None:
        raise GraphError("is_causal and attn_mask exclude each other")
    weights = attention_weights(attention_scores(query, key, attn_mask, is_causal, scale))
    return matmul(dropout(weights, dropout_p) if dropout_p else weights, value)


def attention_weights(scores: Node, masked: bool = True) -> Node:
    """Return the softmax of scores (..., l, s).

    masked  whether the weights of a query that sees no key are zeros, not NaN
    """
    return Softmax(scores.ndim - 1, masked)(scores) if scores.shape[-1] else scores


def attention_scores(
    query: Node, key: Node, mask: Node | None, is_causal: bool, scale: float | None = None
) -> Node:
    """Return query @ key.T * scale, (..., l, s), and -inf for masked keys.

    mask  bools (False masks a key), or floats, which are added
    """
    if not key.shape[-1]:
        raise ShapeError(f"a key of shape {key.shape} is empty")
    if scale is None:
        scale = 1 / math.sqrt(key.shape[-1])
    # The query is scaled, which takes less work than to scale the products.
    axes = (*range(key.ndim - 2), key.ndim - 1, key.ndim - 2)
    scores = matmul(query * scale, permute_dims(key, axes))
    if is_causal:
        scores = comparison.where(lower_triangle(*scores.shape[-2:]), scores, -np.inf)
    if mask is None:
        return scores
    return comparison.where(mask, scores, -np.inf) if kind(mask.dtype) == "b" else scores + mask

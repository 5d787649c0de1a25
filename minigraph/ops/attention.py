"""Attention, with the arguments of `torch.nn.functional`, as a function of other ops."""

from __future__ import annotations

import math

import numpy as np

from minigraph.arguments import Probability
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import Node, Operand, Tensor, builder
from minigraph.ops.comparison import where
from minigraph.ops.creation import lower_triangle
from minigraph.ops.elementwise import kind, promote
from minigraph.ops.matmul import matmul
from minigraph.ops.random import dropout
from minigraph.ops.shape import permute_dims
from minigraph.ops.softmax import Softmax


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

    A query that sees no key gets zeros.

    attn_mask  broadcasts to (..., l, s): False where a key takes no part, or floats to be added
    dropout_p  share of the weights that are dropped
    is_causal  whether each query sees no keys after its own place; then there is no attn_mask
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
    weights = attention_weights(query, key, attn_mask, is_causal, scale)
    return matmul(dropout(weights, dropout_p) if dropout_p else weights, value)


def attention_weights(
    query: Node,
    key: Node,
    mask: Node | None,
    is_causal: bool,
    scale: float | None = None,
    masked: bool = True,
) -> Node:
    """Return softmax(query @ key.T * scale), (..., l, s).

    masked  whether the weights of a query that sees no key are zeros, not NaN
    """
    if not key.shape[-1]:
        raise ShapeError(f"a key of shape {key.shape} is empty")
    if scale is None:
        scale = 1 / math.sqrt(key.shape[-1])
    # The query is scaled, which takes less work than to scale the products.
    axes = (*range(key.ndim - 2), key.ndim - 1, key.ndim - 2)
    scores = matmul(query * scale, permute_dims(key, axes))
    if not key.shape[-2]:
        return scores
    if is_causal:
        scores = where(lower_triangle(*scores.shape[-2:]), scores, -np.inf)
    if mask is not None:
        scores = where(mask, scores, -np.inf) if kind(mask.dtype) == "b" else scores + mask
    return Softmax(scores.ndim - 1, masked)(scores)

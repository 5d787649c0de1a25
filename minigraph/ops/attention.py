"""Attention: sums of values, weighted by the softmax of products of queries and keys."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from minigraph.arguments import Probability
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import Node, Operand, Tensor, builder
from minigraph.ops.comparison import where
from minigraph.ops.creation import lower_triangle
from minigraph.ops.custom_gradient import recomputed
from minigraph.ops.elementwise import kind, promote
from minigraph.ops.joining import concat
from minigraph.ops.matmul import matmul
from minigraph.ops.random import dropout
from minigraph.ops.shape import permute_dims
from minigraph.ops.softmax import Softmax

# With a causal mask, four blocks of queries take 0.65 to 0.85 of the time of one from 256 queries
# on; eight gain nothing up to 1,024, and take longer to compile (Xeon, AVX-512).
MAX_BLOCKS, MIN_BLOCK = 4, 128  # blocks of an attention; queries of a block
# With so many scores of a head, gradients compute the weights again, in more and larger blocks.
MANY_SCORES, MAX_RECOMPUTED_BLOCKS, RECOMPUTED_BLOCK = 1 << 20, 16, 256


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
            f"query of shape {query.shape}, key of {key.shape} and value of {value.shape}: "
            "queries and keys have one size, and each key has a value"
        )
    if is_causal and attn_mask is not None:
        raise GraphError("is_causal and attn_mask exclude each other")
    return attention(query, key, value, attn_mask, is_causal, scale, dropout_p)


class Block(NamedTuple):
    """Consecutive queries, and the keys that any of them sees.

    first    index of the first query
    queries  index of these queries, or of other rows for them, in an array (..., l, n)
    keys     index of these keys, or of their values, in an array (..., s, n)
    """

    first: int
    queries: tuple[Any, ...]
    keys: tuple[Any, ...]


def attention_blocks(query: Node, key: Node, mask: Node | None, is_causal: bool) -> list[Block]:
    """Return the blocks of queries in which to compute attention.

    A causal mask hides the keys after a block, so several blocks take as few as half of the
    products of one (as FlashAttention skips blocks: Dao, 2023).  In several blocks, few of many
    scores are in memory at once.
    """
    length, keys = query.shape[-2], key.shape[-2]
    hides_keys = is_causal and mask is None
    blocks = 1
    if has_many_scores(query, key):
        blocks = min(length // RECOMPUTED_BLOCK, MAX_RECOMPUTED_BLOCKS)
    elif hides_keys and isinstance(length, int) and isinstance(keys, int):
        blocks = min(length // MIN_BLOCK, MAX_BLOCKS)
    if blocks <= 1:
        return [Block(0, (...,), (...,))]
    bounds = [length * i // blocks for i in range(blocks + 1)]
    whole = slice(None)
    return [
        Block(
            first,
            (..., slice(first, end), whole),
            (..., slice(min(end, keys)), whole) if hides_keys else (...,),
        )
        for first, end in itertools.pairwise(bounds)
    ]


def has_many_scores(query: Node, key: Node) -> bool:
    """Whether the gradient of attention should not keep its weights; False for symbolic sizes."""
    length, keys = query.shape[-2], key.shape[-2]
    return isinstance(length, int) and isinstance(keys, int) and length * keys >= MANY_SCORES


def attention(
    query: Node,
    key: Node,
    value: Node,
    mask: Node | None,
    is_causal: bool,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Node:
    """Return the result of `scaled_dot_product_attention`; a mask and `is_causal` may combine."""
    recomputes = has_many_scores(query, key) and not dropout_p  # which would drop others
    results = []
    for first, queries, keys in attention_blocks(query, key, mask, is_causal):
        q, k, v = operands = query[queries], key[keys], value[keys]
        weights = attention_weights(attention_scores(q, k, mask, is_causal, scale, first))
        result = matmul(dropout(weights, dropout_p) if dropout_p else weights, v)
        if recomputes:
            result = recomputed(result, operands if mask is None else (*operands, mask))
        results.append(result)
    return concat(results, -2)


def attention_weights(scores: Node, masked: bool = True) -> Node:
    """Return the softmax of scores (..., l, s).

    masked  whether the weights of a query that sees no key are zeros, not NaN
    """
    return Softmax(scores.ndim - 1, masked)(scores) if scores.shape[-1] else scores


def attention_scores(
    query: Node,
    key: Node,
    mask: Node | None,
    is_causal: bool,
    scale: float | None = None,
    first: int = 0,
) -> Node:
    """Return query @ key.T * scale, (..., l, s), and -inf for masked keys.

    mask   for all queries: bools (False masks a key), or floats, which are added
    first  position of the first query
    """
    if not key.shape[-1]:
        raise ShapeError(f"a key of shape {key.shape} is empty")
    if scale is None:
        scale = 1 / math.sqrt(key.shape[-1])
    # The query is scaled, which takes less work than to scale the products.
    axes = (*range(key.ndim - 2), key.ndim - 1, key.ndim - 2)
    scores = matmul(query * scale, permute_dims(key, axes))
    if is_causal:
        *_, queries, keys = scores.shape
        scores = where(lower_triangle(queries, keys, first), scores, -np.inf)
    if mask is None:
        return scores
    if mask.ndim > 1 and mask.shape[-2] not in (1, query.shape[-2]):
        mask = mask[..., first : first + query.shape[-2], :]
    return where(mask, scores, -np.inf) if kind(mask.dtype) == "b" else scores + mask

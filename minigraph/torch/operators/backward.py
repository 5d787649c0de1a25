"""Rows of ATen's backward operators, most of them by the gradient of the forward row.

PyTorch decomposes the others, such as `gelu_backward`, to elementwise ones.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from minigraph import ops
from minigraph.autodiff import vjp
from minigraph.graph import Graph, Item, Node, placeholders
from minigraph.ops.attention import attention, attention_blocks, attention_scores
from minigraph.ops.elementwise import widen
from minigraph.torch.operators import images
from minigraph.torch.operators.elementwise import log_gamma
from minigraph.torch.operators.layers import embedding_bag, for_heads, nll_loss
from minigraph.torch.operators.reductions import grouped_products
from minigraph.torch.operators.table import ROWS, Row, row, rows
from minigraph.torch.operators.tensors import BORDERS


def gradients(
    forward: Row,
    xs: Sequence[Node],
    dy: Node,
    *arguments: Any,
    saved: Sequence[Node] = (),
    mask: Sequence[bool] | None = None,
) -> list[Any]:
    """Return the gradients for `xs` of `forward(*xs, *arguments)`.

    dy     gradient of the first result
    saved  values of the next results, which are not recomputed
    mask   which gradients are needed; None is returned in place of the others
    """
    # Placeholders, because one of `xs` may depend on another or occur twice.
    inputs = placeholders([x.spec for x in (*xs, dy)])
    results = forward(*inputs[:-1], *arguments)
    y, *others = results if isinstance(results, tuple) else (results,)
    grads = vjp([y], [inputs[-1]], inputs[:-1])
    known = (*inputs, *others[: len(saved)])
    replacements = dict(zip(map(_identity, known), (*xs, dy, *saved), strict=True))

    def replace(old: Node, new: tuple[Node, ...]) -> Node:
        replacement = replacements.get(_identity(old))
        return old.replace(new) if replacement is None else replacement

    outputs = list(Graph(inputs, tuple(grads)).map(replace).outputs)
    if mask is None:
        return outputs
    return [x if needed else None for x, needed in zip_longest(outputs, mask)]


def _identity(node: Node) -> tuple[int, int | None]:
    """Return a key of a node, which is the same for all nodes of one result of an op."""
    return (id(node.inputs[0]), node.op.index) if isinstance(node.op, Item) else (id(node), None)


def _polygamma(n: int, x: Node) -> Node:
    """Return the derivative of order n + 1 of the logarithm of the gamma function."""
    x = ops.astype(x, "float64")
    function = (lambda x: _polygamma(n - 1, x)) if n else log_gamma
    return gradients(function, [x], ops.ones_like(x))[0]


@row("digamma")
def _digamma(x: Node) -> Node:
    pole = ops.copysign(np.inf, -ops.astype(x, "float64"))
    return ops.where(x == 0, pole, _polygamma(0, x))


row("polygamma")(_polygamma)


# ---------------------------------------------------------------- convolutions and batch norm


@row("convolution_backward")
def _convolution_backward(
    dy: Node, x: Node, w: Node, bias_sizes: Any, *arguments: Any
) -> list[Node | None]:
    *window, mask = arguments
    if not mask[2]:
        return gradients(images.convolution, [x, w], dy, None, *window, mask=mask)
    bias = ops.zeros((dy.shape[1],), dtype=w.dtype)
    return gradients(images.convolution, [x, w, bias], dy, *window, mask=mask)


@row("native_batch_norm_backward")
def _batch_norm_backward(
    dy: Node, x: Node, weight: Any, mean: Any, var: Any, batch_mean: Any, batch_inverse: Any,
    training: bool, eps: float, mask: Any,
) -> list[Node | None]:  # fmt: skip
    dtype, channels = x.dtype, (x.shape[1],)
    dy, x = widen(dy), widen(x)
    xs = [x, ops.ones(channels, x.dtype) if weight is None else widen(weight)]
    xs.append(ops.zeros(channels, x.dtype))
    if training:
        batch_var = ops.reciprocal(ops.square(batch_inverse)) - eps
        # Statistics that were rounded to 16 bits are too imprecise, and recomputed.
        saved = [batch_mean, batch_var] if batch_mean.dtype == x.dtype else []
        grads = gradients(ops.batch_norm_with_statistics, xs, dy, eps, saved=saved, mask=mask)
    else:
        statistics = widen(mean), widen(var)
        grads = gradients(
            lambda x, w, b: ops.batch_norm(x, *statistics, w, b, eps=eps), xs, dy, mask=mask
        )
    dx, *others = grads
    return [None if dx is None else ops.astype(dx, dtype), *others]


# ---------------------------------------------------------------- pooling and padding


def max_pool_gradient(dy: Any, x: Any, *window: Any) -> Any:
    """Return the gradient of a max pool for x, which recomputes the positions of the maxima."""
    if isinstance(x, torch.Tensor):
        name = f"max_pool{len(window[0])}d_with_indices"
        indices = getattr(torch.ops.aten, name)(x, *window)[1]
        return getattr(torch.ops.aten, f"{name}_backward")(dy, x, *window, indices)
    return gradients(images.max_pool, [x], dy, *window)[0]


ROWS[f"{__name__}.{max_pool_gradient.__name__}"] = max_pool_gradient


def _gradient(forward: Row) -> Row:
    """Return the row (dy, x, *arguments) of the gradient for x of `forward(x, *arguments)`."""
    return lambda dy, x, *arguments: gradients(forward, [x], dy, *arguments)[0]


def _pooling_gradient(rank: int, pool: Row) -> Row:
    """Return the row (dy, x) of the gradient for x of an adaptive pool."""
    return lambda dy, x: _gradient(pool)(dy, x, dy.shape[-rank:])


def _resizing_gradient(resize: Row) -> Row:
    """Return the row (dy, size, x_size, *arguments) of the gradient for x of a resizing."""
    return lambda dy, size, x_size, *arguments: _gradient(resize)(
        dy, ops.zeros(tuple(x_size), dy.dtype), size, *arguments
    )


rows(
    {
        "avg_pool2d_backward avg_pool3d_backward": _gradient(images.avg_pool),
        "_adaptive_avg_pool2d_backward": _pooling_gradient(2, ops.adaptive_avg_pool2d),
        "_adaptive_avg_pool3d_backward": _pooling_gradient(3, images.adaptive_avg_pool_3d),
        "upsample_nearest2d_backward": _resizing_gradient(images.upsample_nearest),
        "upsample_bilinear2d_backward": _resizing_gradient(images.upsample_bilinear),
        # The last argument is the weight of all labels together.
        "nll_loss_backward nll_loss2d_backward": _gradient(lambda *args: nll_loss(*args[:-1])),
        "grid_sampler_3d_backward": lambda dy, x, grid, *settings: gradients(
            images.grid_sampler_3d, [x, grid], dy, *settings[:-1], mask=settings[-1]
        ),
        **{f"{name}_backward": _gradient(pad) for name, pad in BORDERS.items()},
    }
)
ROWS["transformers.grouped_mm_fallback_backward.default"] = lambda x, w, offsets, dy: gradients(
    grouped_products, [x, w], dy, offsets
)


# ---------------------------------------------------------------- embeddings, weight norm


@row("_embedding_bag_backward")
def _embedding_bag_backward(
    dy: Node, tokens: Node, offsets: Node, bags: Any, sizes: Any, maxima: Any, rows: int,
    by_frequency: bool, mode: int, sparse: bool, factors: Any, padding: int,
) -> Node:  # fmt: skip
    if mode == 2:
        raise NotImplementedError("the gradient of an embedding bag with mode='max'")
    include_last = offsets.shape[0] != dy.shape[0]
    settings = by_frequency, mode, sparse, factors, include_last, padding
    weight = ops.zeros((rows, dy.shape[1]), dy.dtype)
    return gradients(embedding_bag, [weight], dy, tokens, offsets, *settings)[0]


@row("_embedding_bag_per_sample_weights_backward")
def _embedding_bag_factors_backward(
    dy: Node, weight: Node, tokens: Node, offsets: Node, unused: Any, mode: int, padding: int
) -> Node:
    include_last = offsets.shape[0] != dy.shape[0]
    bags = functools.partial(embedding_bag, weight, tokens, offsets, False, mode, False)
    return gradients(bags, [ops.ones(tokens.shape, weight.dtype)], dy, include_last, padding)[0]


@row("_weight_norm_interface_backward")
def _weight_norm_backward(dw: Node, v: Node, g: Node, norms: Node, axis: int) -> list[Node]:
    axes = tuple(a for a in range(v.ndim) if a != axis % v.ndim)
    return gradients(lambda v, g: v * (g / ops.norm(v, 2, axes, True)), [v, g], dw)


# ---------------------------------------------------------------- attention


@row("_scaled_dot_product_flash_attention_for_cpu")
def _attention(
    query: Node, key: Node, value: Node, p: float = 0.0, causal: bool = False, *,
    attn_mask: Any = None, scale: float | None = None,
) -> tuple[Node, Node]:  # fmt: skip
    """Return the result and, for each query, the logarithm of the sum of exponentials."""
    _refuse_dropout(p)
    y, key = _attend(query, key, value, attn_mask, causal, scale), for_heads(query, key)
    sums = []  # of the same scores, which the optimizer computes once
    for first, queries, keys in attention_blocks(query, key, attn_mask, causal):
        scores = attention_scores(query[queries], key[keys], attn_mask, causal, scale, first)
        sums.append(ops.logsumexp(widen(scores), -1))
    return y, ops.concat(sums, -1)


def _refuse_dropout(p: float) -> None:
    if p:
        raise NotImplementedError("flash attention with dropout")


def _attend(query: Node, key: Node, value: Node, *settings: Any) -> Node:
    return attention(query, for_heads(query, key), for_heads(query, value), *settings)


@row("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(
    dy: Node, query: Node, key: Node, value: Node, y: Node, sums: Node, p: float, causal: bool, *,
    attn_mask: Any = None, scale: float | None = None,
) -> list[Node]:  # fmt: skip
    """Return the gradients; the weights are recomputed, as in FlashAttention (Dao, 2022)."""
    _refuse_dropout(p)
    return gradients(_attend, [query, key, value], dy, attn_mask, causal, scale)

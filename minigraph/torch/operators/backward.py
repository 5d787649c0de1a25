"""Rows of ATen's backward operators, most of them by the gradient of the forward row.

PyTorch decomposes the others, such as `gelu_backward`, to elementwise ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    forward: Callable[..., Any], xs: Sequence[Node], dy: Node, saved: Sequence[Node] = ()
) -> list[Node]:
    """Return the gradients for `xs` of `forward(*xs)`, from the gradient `dy` of its first result.

    saved  values of the other results of `forward`, which are not recomputed
    """
    # Placeholders, because one of `xs` may depend on another or occur twice.
    inputs = placeholders([x.spec for x in (*xs, dy)])
    results = forward(*inputs[:-1])
    y, *others = results if isinstance(results, tuple) else (results,)
    grads = vjp([y], [inputs[-1]], inputs[:-1])
    values = (*xs, dy, *saved)
    replacements = dict(zip(map(_identity, (*inputs, *others)), values, strict=True))

    def replace(old: Node, new: tuple[Node, ...]) -> Node:
        replacement = replacements.get(_identity(old))
        return old.replace(new) if replacement is None else replacement

    return list(Graph(inputs, tuple(grads)).map(replace).outputs)


def _identity(node: Node) -> tuple[int, int | None]:
    """Return a key of a node, which is the same for all nodes of one result of an op."""
    return (id(node.inputs[0]), node.op.index) if isinstance(node.op, Item) else (id(node), None)


def _masked(values: Sequence[Any], mask: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(value if needed else None for value, needed in zip(values, mask, strict=True))


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
    dy: Node, x: Node, w: Node, bias_sizes: Any, *args: Any
) -> tuple[Node | None, ...]:
    *window, mask = args
    xs = [x, w]
    if mask[2]:
        xs.append(ops.zeros((dy.shape[1],), dtype=w.dtype))

    def forward(x: Node, w: Node, bias: Node | None = None) -> Any:
        return images.convolution(x, w, bias, *window)

    return _masked([*gradients(forward, xs, dy), None][:3], mask)


@row("native_batch_norm_backward")
def _batch_norm_backward(
    dy: Node, x: Node, weight: Any, mean: Any, var: Any, batch_mean: Any, batch_inverse: Any,
    training: bool, eps: float, mask: Any,
) -> tuple[Node | None, ...]:  # fmt: skip
    dtype, channels = x.dtype, (x.shape[1],)
    dy, x = widen(dy), widen(x)
    xs = [x, ops.ones(channels, x.dtype) if weight is None else widen(weight)]
    xs.append(ops.zeros(channels, x.dtype))
    if training:
        batch_var = ops.reciprocal(ops.square(batch_inverse)) - eps
        # Statistics that were rounded to 16 bits are too imprecise, and recomputed.
        saved = [batch_mean, batch_var] if batch_mean.dtype == x.dtype else []

        def forward(x: Node, w: Node, b: Node) -> Any:
            results = ops.batch_norm_with_statistics(x, w, b, eps)
            return results if saved else results[0]

        dx, *others = gradients(forward, xs, dy, saved)
    else:
        dx, *others = gradients(
            lambda x, w, b, mean, var: ops.batch_norm(x, mean, var, w, b, eps=eps),
            [*xs, widen(mean), widen(var)], dy,
        )[:3]  # fmt: skip
    return _masked([ops.astype(dx, dtype), *others], mask)


# ---------------------------------------------------------------- pooling and padding


def max_pool_gradient(dy: Any, x: Any, *window: Any) -> Any:
    """Return the gradient of a max pool for x, which recomputes the positions of the maxima."""
    if isinstance(x, torch.Tensor):
        name = f"max_pool{len(window[0])}d_with_indices"
        indices = getattr(torch.ops.aten, name)(x, *window)[1]
        return getattr(torch.ops.aten, f"{name}_backward")(dy, x, *window, indices)
    return gradients(lambda x: images.max_pool(x, *window)[0], [x], dy)[0]


ROWS[f"{__name__}.{max_pool_gradient.__name__}"] = max_pool_gradient


def _gradient(forward: Row) -> Row:
    """Return the row (dy, x, *arguments) of the gradient for x of `forward(x, *arguments)`."""
    return lambda dy, x, *arguments: gradients(lambda x: forward(x, *arguments), [x], dy)[0]


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
        **{f"{name}_backward": _gradient(pad) for name, pad in BORDERS.items()},
    }
)
ROWS["transformers.grouped_mm_fallback_backward.default"] = lambda x, w, offsets, dy: gradients(
    lambda x, w: grouped_products(x, w, offsets), [x, w], dy
)


@row("grid_sampler_3d_backward")
def _grid_sampler_backward(
    dy: Node, x: Node, grid: Node, mode: int, border: int, align: bool, mask: Any
) -> tuple[Node | None, ...]:
    def forward(x: Node, grid: Node) -> Node:
        return images.grid_sampler_3d(x, grid, mode, border, align)

    return _masked(gradients(forward, [x, grid], dy), mask)


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
    return gradients(lambda w: embedding_bag(w, tokens, offsets, *settings)[0], [weight], dy)[0]


@row("_embedding_bag_per_sample_weights_backward")
def _embedding_bag_factors_backward(
    dy: Node, weight: Node, tokens: Node, offsets: Node, bags: Any, mode: int, padding: int
) -> Node:
    include_last = offsets.shape[0] != dy.shape[0]

    def forward(factors: Node) -> Any:
        settings = False, mode, False, factors, include_last, padding
        return embedding_bag(weight, tokens, offsets, *settings)[0]

    return gradients(forward, [ops.ones(tokens.shape, weight.dtype)], dy)[0]


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
    if p:
        raise NotImplementedError("flash attention with dropout")
    key, value = for_heads(query, key), for_heads(query, value)
    y = attention(query, key, value, attn_mask, causal, scale)
    sums = []  # of the same scores, which the optimizer computes once
    for first, queries, keys in attention_blocks(query, key, attn_mask, causal):
        scores = attention_scores(query[queries], key[keys], attn_mask, causal, scale, first)
        sums.append(ops.logsumexp(widen(scores), -1))
    return y, ops.concat(sums, -1)


@row("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(
    dy: Node, query: Node, key: Node, value: Node, y: Node, sums: Node, p: float, causal: bool, *,
    attn_mask: Any = None, scale: float | None = None,
) -> list[Node]:  # fmt: skip
    """Return the gradients; the weights are recomputed, as in FlashAttention (Dao, 2022)."""
    if p:
        raise NotImplementedError("flash attention with dropout")

    def forward(query: Node, key: Node, value: Node) -> Node:
        key, value = for_heads(query, key), for_heads(query, value)
        return attention(query, key, value, attn_mask, causal, scale)

    return gradients(forward, [query, key, value], dy)

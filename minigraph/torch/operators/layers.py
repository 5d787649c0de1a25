"""Rows of attention, losses, normalisations and recurrent layers."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

from minigraph import nn, ops
from minigraph.errors import GraphError
from minigraph.graph import Node
from minigraph.ops.indexing import take_tokens
from minigraph.torch.operators.table import row, rows
from minigraph.torch.operators.tensors import scatter_reduce

REDUCTIONS: tuple[Literal["none", "mean", "sum"], ...] = ("none", "mean", "sum")
PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@row("scaled_dot_product_attention")
def _attention(
    query: Node, key: Node, value: Node, mask: Any = None, p: float = 0.0, causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Node:  # fmt: skip
    key, value = for_heads(query, key), for_heads(query, value)
    return ops.scaled_dot_product_attention(query, key, value, mask, p, causal, scale)


def for_heads(query: Node, x: Node) -> Node:
    """Return keys or values with one head for each head of the queries, which may share them."""
    if x.ndim < 3 or x.shape[-3] in (1, query.shape[-3]):
        return x
    return ops.repeat(x, query.shape[-3] // x.shape[-3], -3)


# ---------------------------------------------------------------- bags of embeddings


@row("_embedding_bag")
def embedding_bag(
    weight: Node, tokens: Node, offsets: Node, by_frequency: bool = False, mode: int = 0,
    sparse: bool = False, factors: Any = None, include_last: bool = False, padding: int = -1,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the sum, mean or maximum of the rows in each bag, the bags of tokens, and their sizes.

    mode     0: sum, 1: mean, 2: maximum
    factors  weights of the rows in their sum
    """
    if by_frequency:
        raise GraphError("scale_grad_by_freq is not supported")
    count = offsets.shape[0] - include_last
    positions = ops.arange(tokens.size, dtype=offsets.dtype)
    bags = ops.searchsorted(offsets[:count], positions, "right") - 1
    counts = ops.astype(tokens != padding, "int64")
    sizes = ops.index_add(ops.zeros(count, "int64"), 0, bags, counts)
    vectors, is_counted = take_tokens(weight, tokens), ops.expand_dims(counts != 0, -1)
    vectors = vectors if factors is None else vectors * ops.expand_dims(factors, -1)
    y = ops.zeros((count, weight.shape[1]), weight.dtype)
    if mode < 2:
        y = ops.index_add(y, 0, bags, ops.where(is_counted, vectors, 0))
        return (y / ops.maximum(sizes, 1)[:, None] if mode else y), bags, sizes, sizes
    index = ops.broadcast_to(ops.expand_dims(bags, -1), vectors.shape)
    vectors = ops.where(is_counted, vectors, -math.inf)
    y = scatter_reduce(y, 0, index, vectors, "amax", include_self=False)
    return ops.where(sizes[:, None] == 0, 0, y), bags, sizes, None


# ---------------------------------------------------------------- losses


rows(
    {
        "smooth_l1_loss": lambda x, target, reduction, beta: ops.smooth_l1_loss(
            x, target, reduction=REDUCTIONS[reduction], beta=beta
        ),
        "huber_loss": lambda x, target, reduction, delta: ops.huber_loss(
            x, target, REDUCTIONS[reduction], delta
        ),
        "binary_cross_entropy": lambda x, target, weight, reduction: ops.binary_cross_entropy(
            x, target, weight, reduction=REDUCTIONS[reduction]
        ),
        "_native_batch_norm_legit_no_training": lambda *args: _batch_norm_functional(
            *args[:5], False, *args[5:]
        )[:3],
        "rms_norm": lambda x, shape, weight, eps: ops.rms_norm(x, tuple(shape), weight, eps),
    }
)


def nll_loss(x: Node, labels: Node, weight: Any, reduction: int, ignored: int) -> Node:
    """Return the losses of rows x (n, classes, ...), or of one row."""
    if x.ndim == 1:
        loss = nll_loss(x[None], labels[None], weight, reduction, ignored)
        return loss if reduction else loss[0]
    return ops.nll_loss(x, labels, weight, ignore_index=ignored, reduction=REDUCTIONS[reduction])


@row("cross_entropy_loss")
def _cross_entropy(
    x: Node, labels: Node, weight: Any, reduction: int, ignored: int, smoothing: float
) -> Node:
    if x.ndim == 1:
        loss = _cross_entropy(x[None], labels[None], weight, reduction, ignored, smoothing)
        return loss if reduction else loss[0]
    settings: Any = {"reduction": REDUCTIONS[reduction], "label_smoothing": smoothing}
    ignore = ignored if labels.dtype.kind in "iu" else None
    return ops.cross_entropy(x, labels, weight, ignore_index=ignore, **settings)


@row("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss_forward(
    x: Node, labels: Node, weight: Any, reduction: int, ignored: int
) -> tuple[Node, Node]:
    """Return the losses, and the total weight of the labels for a mean or a sum."""
    loss = nll_loss(x, labels, weight, reduction, ignored)
    if not reduction:
        return loss, ops.zeros((), x.dtype)
    has_weight = labels != ignored
    weights: Any = 1 if weight is None else ops.take(weight, ops.where(has_weight, labels, 0), 0)
    return loss, ops.astype(ops.sum(ops.where(has_weight, weights, 0)), x.dtype)


@row("multilabel_margin_loss_forward")
def _multilabel_margin_loss(x: Node, labels: Node, reduction: int) -> tuple[Node, Node]:
    """Return the losses, and 1 for each class among the labels before the first -1.

    PyTorch's decomposition wrongly counts the labels after the first -1, too.
    """
    classes = x.shape[-1]
    rows, indices = ops.reshape(x, (-1, classes)), ops.reshape(labels, (-1, classes))
    is_label = ops.cumprod(ops.astype(indices >= 0, x.dtype), 1)
    indices = ops.maximum(indices, 0)
    label_counts = ops.scatter_add(ops.zeros_like(rows), 1, indices, is_label)
    is_other = ops.astype(label_counts == 0, x.dtype)
    label_scores = ops.take_along_axis(rows, indices, 1)
    margins = ops.relu(1 - label_scores[:, :, None] + rows[:, None, :])
    loss = ops.sum(margins * is_label[:, :, None] * is_other[:, None, :], (1, 2)) / classes
    if reduction:
        loss = ops.mean(loss) if reduction == 1 else ops.sum(loss)
    return loss, ops.reshape(1 - is_other, x.shape)


# ---------------------------------------------------------------- normalisations


@row("_native_batch_norm_legit_functional")
def _batch_norm_functional(
    x: Node, weight: Any, bias: Any, mean: Node, var: Node, training: bool, momentum: float,
    eps: float,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the result, the mean and 1 / sqrt(var + eps) that made it, and new statistics."""
    x = ops.astype(x, mean.dtype)  # 16-bit inputs with float32 statistics, under autocast
    if not training:
        y = ops.batch_norm(x, mean, var, weight, bias, False, momentum, eps)
        return y, mean, ops.rsqrt(var + eps), mean, var
    y, batch_mean, batch_var = ops.batch_norm_with_statistics(x, weight, bias, eps)
    count = x.size // batch_mean.size
    unbiased = batch_var * (count / (count - 1) if count != 1 else 1.0)  # a size may be symbolic
    decay = 1 - momentum
    return (
        y,
        batch_mean,
        ops.rsqrt(batch_var + eps),
        mean * decay + ops.astype(batch_mean, mean.dtype) * momentum,
        var * decay + ops.astype(unbiased, var.dtype) * momentum,
    )


@row("_native_batch_norm_legit.no_stats")
def _batch_norm_without_statistics(
    x: Node, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Node, Node, Node]:
    y, mean, var = ops.batch_norm_with_statistics(x, weight, bias, eps)
    return y, *_saved(mean, var, eps)


@row("native_layer_norm")
def _layer_norm(x: Node, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Node, Node, Node]:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    mean, var = ops.mean(x, axes, True), ops.var(x, axes, 0, True)
    return ops.layer_norm(x, tuple(shape), weight, bias, eps), *_saved(mean, var, eps)


@row("native_group_norm")
def _group_norm(
    x: Node, weight: Any, bias: Any, n: Any, c: Any, size: Any, groups: int, eps: float
) -> tuple[Node, Node, Node]:
    parts = ops.reshape(x, (n, groups, -1))
    mean, deviation = ops.mean(parts, -1), ops.rsqrt(ops.var(parts, -1) + eps)
    return ops.group_norm(x, groups, weight, bias, eps), mean, deviation


def _saved(mean: Node, var: Node, eps: float) -> tuple[Node, Node]:
    """Return the mean and 1 / sqrt(var + eps) for the backward operators, without a gradient."""
    return ops.stop_gradient(mean), ops.stop_gradient(ops.rsqrt(var + eps))


# ---------------------------------------------------------------- recurrent layers


class _MaskedLoop:
    """The loop of a recurrent layer over sequences of several lengths.

    A state is constant beyond the end of its sequence, so the reverse loop starts at that end.
    """

    valid: Node  # (length, n): which steps a sequence has

    def _over_time(self, x: Node, start: Any, suffix: str, first: bool) -> tuple[Node, Any]:
        w, u, b, c = self._weights(suffix)  # type: ignore[attr-defined]

        def masked(state: Any, parts: Any) -> tuple[Any, Node]:
            projected, valid = parts
            product = ops.linear(state[0], u, c)
            new_state = self._gate_arithmetic(state, projected, product)  # type: ignore[attr-defined]
            state = tuple(ops.where(valid, h, old) for h, old in zip(new_state, state, strict=True))
            return state, state[0]

        steps = ops.linear(x, w, b), ops.expand_dims(self.valid, -1)
        end, y = ops.scan(masked, start, steps, reverse=suffix.endswith("_reverse"))
        return y, end


def recurrent_layer(
    layer: type[Any], x: Node, state: Any, weights: Sequence[Node], bias: bool, layers: int,
    dropout: float, training: bool, bidirectional: bool, batch_first: bool,
    valid: Node | None = None, **keywords: Any,
) -> list[Node]:  # fmt: skip
    """Return the results of a recurrent layer on weights of the graph, which are in torch's order.

    valid  (length, n): which steps a sequence has; None: all
    named  more arguments of the layer
    """
    parts = PARTS if bias else PARTS[:2]
    if len(weights) != len(parts) * layers * (2 if bidirectional else 1):
        raise GraphError("proj_size of recurrent layers is not supported")
    remaining = iter(weights)
    bases: tuple[type[Any], ...] = (layer,) if valid is None else (_MaskedLoop, layer)

    class GraphLayer(*bases):  # type: ignore[misc]
        """The layer on weights of the graph."""

        def _add_weights(self, width: Any, suffix: str) -> None:
            for part in parts:
                setattr(self, part + suffix, next(remaining))

    net = GraphLayer(
        x.shape[-1], weights[1].shape[-1], layers, bias=bias, batch_first=batch_first,
        dropout=dropout, bidirectional=bidirectional, **keywords,
    ).train(training)  # fmt: skip
    net.valid = valid
    y, last = net.forward(x, state)
    return [y, *(last if isinstance(last, tuple) else [last])]


LAYERS: dict[str, tuple[type[Any], dict[str, Any]]] = {  # by torch's `mode` of a layer
    "LSTM": (nn.LSTM, {}),
    "GRU": (nn.GRU, {}),
    "RNN_TANH": (nn.RNN, {}),
    "RNN_RELU": (nn.RNN, {"nonlinearity": "relu"}),
}


rows(
    {
        f"{mode.lower()}.input": functools.partial(recurrent_layer, layer, **named)
        for mode, (layer, named) in LAYERS.items()
    }
)

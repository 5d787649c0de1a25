"""Rows of attention, losses, normalisations and recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from minigraph import nn, ops
from minigraph.errors import GraphError
from minigraph.graph import Node
from minigraph.torch.operators.table import Row, row, rows

REDUCTIONS: tuple[Literal["none", "mean", "sum"], ...] = ("none", "mean", "sum")
PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@row("scaled_dot_product_attention")
def _attention(
    query: Node, key: Node, value: Node, mask: Any = None, p: float = 0.0, causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Node:  # fmt: skip
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = ops.repeat(key, times, -3), ops.repeat(value, times, -3)
    return ops.scaled_dot_product_attention(query, key, value, mask, p, causal, scale)


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
    how = REDUCTIONS[reduction]
    if x.ndim > 1:
        return ops.nll_loss(x, labels, weight, ignore_index=ignored, reduction=how)
    one = ops.expand_dims(x, 0), ops.expand_dims(labels, 0)
    loss = ops.nll_loss(*one, weight, ignore_index=ignored, reduction=how)
    return loss if reduction else ops.squeeze(loss, 0)


@row("cross_entropy_loss")
def _cross_entropy(
    x: Node, labels: Node, weight: Any, reduction: int, ignored: int, smoothing: float
) -> Node:
    how: Any = REDUCTIONS[reduction]
    ignore = ignored if labels.dtype.kind in "iu" else None
    one = x.ndim == 1
    given = (ops.expand_dims(x, 0), ops.expand_dims(labels, 0)) if one else (x, labels)
    loss = ops.cross_entropy(
        *given, weight, ignore_index=ignore, reduction=how, label_smoothing=smoothing
    )
    return ops.squeeze(loss, 0) if one and how == "none" else loss


@row("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss_forward(
    x: Node, labels: Node, weight: Any, reduction: int, ignored: int
) -> tuple[Node, Node]:
    """Return the losses, and the weight of all labels together where there is a mean or a sum."""
    loss = nll_loss(x, labels, weight, reduction, ignored)
    if not reduction:
        return loss, ops.zeros((), x.dtype)
    counted = labels != ignored
    weights: Any = 1 if weight is None else ops.take(weight, ops.where(counted, labels, 0), 0)
    return loss, ops.astype(ops.sum(ops.where(counted, weights, 0)), x.dtype)


# ---------------------------------------------------------------- normalisations


@row("_native_batch_norm_legit_functional")
def _batch_norm_functional(
    x: Node, weight: Any, bias: Any, mean: Node, var: Node, training: bool, momentum: float,
    eps: float,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the result, the mean and 1 / sqrt(var + eps) that made it, and new statistics."""
    x = ops.astype(x, mean.dtype)  # of 16 bits beside float32 under autocast
    if not training:
        y = ops.batch_norm(x, mean, var, weight, bias, False, momentum, eps)
        return y, mean, ops.rsqrt(var + eps), mean, var
    y, batch_mean, batch_var = ops.batch_norm_with_statistics(x, weight, bias, eps)
    count = x.size // batch_mean.size
    unbiased = batch_var * (count / (count - 1) if count != 1 else 1.0)  # a size may be symbolic
    kept = 1 - momentum
    return (
        y,
        batch_mean,
        ops.rsqrt(batch_var + eps),
        mean * kept + ops.astype(batch_mean, mean.dtype) * momentum,
        var * kept + ops.astype(unbiased, var.dtype) * momentum,
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
    """Return what the backward operators read; torch has no gradient of it."""
    return ops.stop_gradient(mean), ops.stop_gradient(ops.rsqrt(var + eps))


# ---------------------------------------------------------------- recurrent layers


def _layers(layer: type[Any], **named: Any) -> Row:
    """Return the row of a recurrent layer.

    named  arguments of the layer
    """

    def call(
        x: Node, state: Any, weights: Sequence[Node], bias: bool, layers: int, dropout: float,
        training: bool, bidirectional: bool, batch_first: bool,
    ) -> list[Node]:  # fmt: skip
        parts = PARTS if bias else PARTS[:2]
        if len(weights) != len(parts) * layers * (2 if bidirectional else 1):
            raise GraphError("recurrent layers have no proj_size here")
        left = iter(weights)

        class Given(layer):  # type: ignore[misc]
            """The layer on weights of the graph, which come in the order it makes its own in."""

            def _add_weights(self, width: Any, suffix: str) -> None:
                for part in parts:
                    setattr(self, part + suffix, next(left))

        net = Given(
            x.shape[-1], weights[1].shape[-1], layers, bias=bias, batch_first=batch_first,
            dropout=dropout, bidirectional=bidirectional, **named,
        ).train(training)  # fmt: skip
        y, last = net.forward(x, state)
        return [y, *(last if isinstance(last, tuple) else [last])]

    return call


rows(
    {
        "lstm.input": _layers(nn.LSTM),
        "gru.input": _layers(nn.GRU),
        "rnn_tanh.input": _layers(nn.RNN),
        "rnn_relu.input": _layers(nn.RNN, nonlinearity="relu"),
    }
)

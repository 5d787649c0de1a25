"""Rows of attention and of losses."""

from __future__ import annotations

from typing import Any, Literal

from minigraph import ops
from minigraph.graph import Node
from minigraph.torch.operators.table import row


@row("scaled_dot_product_attention")
def _attention(
    query: Node, key: Node, value: Node, mask: Any = None, p: float = 0.0, causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Node:  # fmt: skip
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = ops.repeat(key, times, -3), ops.repeat(value, times, -3)
    return ops.scaled_dot_product_attention(query, key, value, mask, p, causal, scale)


REDUCTIONS: tuple[Literal["none", "mean", "sum"], ...] = ("none", "mean", "sum")


@row("cross_entropy_loss")
def _cross_entropy(
    x: Node, labels: Node, weight: Any = None, reduction: int = 1, ignore: int = -100,
    smoothing: float = 0.0,
) -> Node:  # fmt: skip
    single = x.ndim == 1
    x, labels = (ops.expand_dims(each, 0) if single else each for each in (x, labels))
    return ops.cross_entropy(
        x, labels, weight, ignore_index=ignore, reduction=REDUCTIONS[reduction],
        label_smoothing=smoothing,
    )  # fmt: skip


@row("nll_loss_nd", "nll_loss", "nll_loss2d")
def _nll_loss(
    x: Node, labels: Node, weight: Any = None, reduction: int = 1, ignore: int = -100
) -> Node:
    return ops.nll_loss(x, labels, weight, ignore_index=ignore, reduction=REDUCTIONS[reduction])


@row("mse_loss")
def _mse_loss(x: Node, target: Node, reduction: int = 1) -> Node:
    return ops.mse_loss(x, target, reduction=REDUCTIONS[reduction])


@row("l1_loss")
def _l1_loss(x: Node, target: Node, reduction: int = 1) -> Node:
    return ops.l1_loss(x, target, reduction=REDUCTIONS[reduction])


@row("smooth_l1_loss")
def _smooth_l1_loss(x: Node, target: Node, reduction: int = 1, beta: float = 1.0) -> Node:
    return ops.smooth_l1_loss(x, target, reduction=REDUCTIONS[reduction], beta=beta)


@row("huber_loss")
def _huber_loss(x: Node, target: Node, reduction: int = 1, delta: float = 1.0) -> Node:
    return ops.huber_loss(x, target, REDUCTIONS[reduction], delta)


@row("binary_cross_entropy")
def _binary_cross_entropy(x: Node, target: Node, weight: Any = None, reduction: int = 1) -> Node:
    return ops.binary_cross_entropy(x, target, weight, reduction=REDUCTIONS[reduction])


@row("binary_cross_entropy_with_logits")
def _binary_cross_entropy_with_logits(
    x: Node, target: Node, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Node:
    return ops.binary_cross_entropy_with_logits(
        x, target, weight, reduction=REDUCTIONS[reduction], pos_weight=pos_weight
    )

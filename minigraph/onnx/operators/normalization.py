"""Rows of operators that normalise."""

from __future__ import annotations

from typing import Any

from minigraph import ops
from minigraph.graph import Node, Parameter
from minigraph.onnx.operators.table import MICROSOFT, row


@row("BatchNormalization", counting=True)
def _batch_norm(
    x: Node, scale: Node, bias: Node, mean: Node, var: Node, epsilon: float = 1e-5,
    momentum: float = 0.9, training_mode: int = 0, outputs: int = 1,
) -> Any:  # fmt: skip
    for each in (mean, var):
        if isinstance(each, Parameter):
            each.trainable = False
    if not training_mode:
        return ops.batch_norm(x, mean, var, scale, bias, eps=epsilon)
    y, batch_mean, batch_var = ops.batch_norm_with_statistics(x, scale, bias, epsilon)
    pairs = ((mean, batch_mean), (var, batch_var))
    return [y, *(old * momentum + new * (1 - momentum) for old, new in pairs)][:outputs]


@row("InstanceNormalization")
def _instance_norm(x: Node, scale: Node, bias: Node, epsilon: float = 1e-5) -> Node:
    return ops.group_norm(x, x.shape[1], scale, bias, epsilon)


@row("LRN")
def _lrn(x: Node, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Node:
    return ops.local_response_norm(x, size, alpha, beta, bias)


@row("LayerNormalization", counting=True)
def _layer_norm(
    x: Node, scale: Node, bias: Node | None = None, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1, outputs: int = 1,
) -> Any:  # fmt: skip
    axes, shape = tuple(range(axis % x.ndim, x.ndim)), x.shape[axis % x.ndim :]
    factor, term = (w if w is None else ops.broadcast_to(w, shape) for w in (scale, bias))
    y = ops.layer_norm(x, shape, factor, term, epsilon)
    if outputs == 1:
        return y
    return [y, ops.mean(x, axes, True), ops.rsqrt(ops.var(x, axes, 0, True) + epsilon)][:outputs]


@row(
    "RMSNormalization", f"{MICROSOFT}.SimplifiedLayerNormalization", "SimplifiedLayerNormalization"
)
def _rms_norm(
    x: Node, scale: Node, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Node:
    shape = x.shape[axis % x.ndim :]
    return ops.rms_norm(x, shape, ops.broadcast_to(scale, shape), epsilon)


@row(f"{MICROSOFT}.SkipLayerNormalization")
def _skip_layer_norm(
    x: Node, skip: Node, gamma: Node, beta: Node | None = None, bias: Node | None = None,
    epsilon: float = 1e-5,
) -> list[Node | None]:  # fmt: skip
    total = x + skip if bias is None else x + skip + bias
    return [ops.layer_norm(total, total.shape[-1:], gamma, beta, epsilon), None, None, total]


@row(f"{MICROSOFT}.SkipSimplifiedLayerNormalization")
def _skip_rms_norm(
    x: Node, skip: Node, gamma: Node, bias: Node | None = None, epsilon: float = 1e-5
) -> list[Node | None]:
    total = x + skip if bias is None else x + skip + bias
    return [ops.rms_norm(total, total.shape[-1:], gamma, epsilon), None, None, total]

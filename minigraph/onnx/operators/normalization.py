"""Rows of operators that normalise."""

from __future__ import annotations

from typing import Any

from minigraph import ops
from minigraph.graph import Node, Parameter
from minigraph.onnx.operators.table import MICROSOFT, Row, row, rows


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


def _skip(norm: Row, x: Node, skip: Node, bias: Node | None, *weights: Any) -> Any:
    """Return the normalization of a sum, and that."""
    total = x + skip if bias is None else x + skip + bias
    return [norm(total, total.shape[-1:], *weights), None, None, total]


rows(
    {
        "InstanceNormalization": lambda x, scale, bias, epsilon=1e-5: ops.group_norm(
            x, x.shape[1], scale, bias, epsilon
        ),
        "LRN": lambda x, size, alpha=1e-4, beta=0.75, bias=1.0: ops.local_response_norm(
            x, size, alpha, beta, bias
        ),
        f"{MICROSOFT}.SkipLayerNormalization": (
            lambda x, skip, gamma, beta=None, bias=None, epsilon=1e-5: _skip(
                ops.layer_norm, x, skip, bias, gamma, beta, epsilon
            )
        ),
        f"{MICROSOFT}.SkipSimplifiedLayerNormalization": (
            lambda x, skip, gamma, bias=None, epsilon=1e-5: _skip(
                ops.rms_norm, x, skip, bias, gamma, epsilon
            )
        ),
    }
)

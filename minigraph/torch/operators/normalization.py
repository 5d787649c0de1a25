"""Rows of operators that normalise."""

from __future__ import annotations

from typing import Any

from minigraph import ops
from minigraph.graph import Node
from minigraph.torch.operators.table import row


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


@row("_native_batch_norm_legit_no_training")
def _batch_norm_inference(
    x: Node, weight: Any, bias: Any, mean: Node, var: Node, momentum: float, eps: float
) -> tuple[Any, ...]:
    return _batch_norm_functional(x, weight, bias, mean, var, False, momentum, eps)[:3]


@row("batch_norm")
def _batch_norm(
    x: Node, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float,
    eps: float, *unused: Any,
) -> Node:  # fmt: skip
    return ops.batch_norm(x, mean, var, weight, bias, training, momentum, eps)


@row("layer_norm")
def _layer_norm(
    x: Node, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *unused: Any
) -> Node:
    return ops.layer_norm(x, tuple(shape), weight, bias, eps)


@row("native_layer_norm")
def _native_layer_norm(
    x: Node, shape: Any, weight: Any, bias: Any, eps: float
) -> tuple[Node, Node, Node]:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    mean, var = ops.mean(x, axes, True), ops.var(x, axes, 0, True)
    return ops.layer_norm(x, tuple(shape), weight, bias, eps), *_saved(mean, var, eps)


@row("rms_norm")
def _rms_norm(x: Node, shape: Any, weight: Any = None, eps: Any = None) -> Node:
    return ops.rms_norm(x, tuple(shape), weight, eps)


@row("group_norm")
def _group_norm(
    x: Node, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *unused: Any
) -> Node:
    return ops.group_norm(x, groups, weight, bias, eps)


@row("native_group_norm")
def _native_group_norm(
    x: Node, weight: Any, bias: Any, n: Any, c: Any, size: Any, groups: int, eps: float
) -> tuple[Node, Node, Node]:
    parts = ops.reshape(x, (n, groups, -1))
    mean, deviation = ops.mean(parts, -1), ops.rsqrt(ops.var(parts, -1) + eps)
    return ops.group_norm(x, groups, weight, bias, eps), mean, deviation


@row("_native_batch_norm_legit.no_stats")
def _batch_norm_without_statistics(
    x: Node, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Node, Node, Node]:
    y, mean, var = ops.batch_norm_with_statistics(x, weight, bias, eps)
    return y, *_saved(mean, var, eps)


def _saved(mean: Node, var: Node, eps: float) -> tuple[Node, Node]:
    """Return what the backward operators read; torch has no gradient of it."""
    return ops.stop_gradient(mean), ops.stop_gradient(ops.rsqrt(var + eps))

"""Ops that ONNX lacks, composed of ops that it has."""

import math
from collections.abc import Callable

from minigraph import ops
from minigraph.graph import Node, Op
from minigraph.ops import activation, arithmetic, comparison, exponential, trigonometric


def _log1p(x: Node) -> Node:
    """Return log(1 + x) without the rounding error of 1 + x (Kahan; Higham 1996, 1.14.1)."""
    u = 1 + x
    return ops.where((u == 1) | (x == math.inf), x, ops.log(u) * (x / (u - 1)))


def _atan2(y: Node, x: Node) -> Node:
    slope = ops.where(ops.isinf(y) & ops.isinf(x), ops.sign(y) * ops.sign(x), y / x)
    upright = ops.where(y == 0, y, ops.sign(y) * (math.pi / 2))
    angle = ops.where(x == 0, upright, ops.atan(slope))
    is_left = (x < 0) | ((y == 0) & ops.signbit(x))
    return ops.where(is_left, angle + ops.copysign(ops.full_like(y, math.pi), y), angle)


def _hypot(x: Node, y: Node) -> Node:
    """Return sqrt(x**2 + y**2) without overflow or underflow of the squares."""
    x, y = abs(x), abs(y)
    larger = ops.maximum(x, y)
    length = larger * ops.sqrt(1 + ops.square(ops.minimum(x, y) / larger))
    length = ops.where(larger == 0, larger, length)
    return ops.where(ops.isinf(x) | ops.isinf(y), math.inf, length)


COMPOSED: dict[type[Op], Callable[..., Node]] = {
    activation.Logaddexp: lambda x, y: (
        ops.maximum(x, y) + ops.log1p(ops.exp(-ops.where(x == y, 0, abs(x - y))))
    ),
    arithmetic.Copysign: lambda x, y: ops.where(ops.signbit(y), -abs(x), abs(x)),
    arithmetic.Hypot: _hypot,
    arithmetic.Rsqrt: lambda x: ops.reciprocal(ops.sqrt(x)),
    arithmetic.Square: lambda x: x * x,
    comparison.Isfinite: lambda x: ops.logical_not(ops.isinf(x) | ops.isnan(x)),
    comparison.NotEqual: lambda x, y: ops.logical_not(x == y),
    comparison.Signbit: lambda x: (x < 0) | ((x == 0) & (1 / x < 0)),
    exponential.Erfc: lambda x: 1 - ops.erf(x),
    exponential.Expm1: lambda x: ops.tanh(x * 0.5) * (ops.exp(x) + 1),  # exact near 0
    exponential.Log10: lambda x: ops.log(x) / math.log(10),
    exponential.Log1p: _log1p,
    exponential.Log2: lambda x: ops.log(x) / math.log(2),
    trigonometric.Atan2: _atan2,
}

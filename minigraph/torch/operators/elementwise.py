"""Rows of operators that compute each element from those in its place."""

from __future__ import annotations

from typing import Any

from minigraph import ops
from minigraph.graph import FLOATS, Node
from minigraph.interchange.division import quotient_toward_zero, remainder_toward_zero
from minigraph.torch.operators.table import Row, row, rows

UNARY = """abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp expm1 floor isfinite
isinf isnan log log10 log1p log2 logical_not reciprocal relu relu6 rsqrt sigmoid sign signbit silu
sin sinh sqrt square tan tanh trunc mish hardswish hardsigmoid"""
rows({name: getattr(ops, name) for name in UNARY.split()}, promotes=True)
rows(
    {
        "neg": ops.negative,
        "round": ops.round,
        "bitwise_not": ops.bitwise_invert,
        "sgn": ops.sign,
        "positive": ops.positive,
        "atan2": ops.atan2,
        "hypot": ops.hypot,
        "copysign.Tensor copysign.Scalar": ops.copysign,
        "nextafter": ops.nextafter,
        "logaddexp": ops.logaddexp,
        "maximum": ops.maximum,
        "minimum": ops.minimum,
        "mul.Tensor mul.Scalar": ops.multiply,
        "pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar": ops.pow,
        "remainder.Tensor remainder.Scalar": ops.remainder,
        "fmod.Tensor fmod.Scalar": remainder_toward_zero,
        "floor_divide floor_divide.Scalar": ops.floor_divide,
        "eq.Tensor eq.Scalar": ops.equal,
        "ne.Tensor ne.Scalar": ops.not_equal,
        "lt.Tensor lt.Scalar": ops.less,
        "le.Tensor le.Scalar": ops.less_equal,
        "gt.Tensor gt.Scalar": ops.greater,
        "ge.Tensor ge.Scalar": ops.greater_equal,
        "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar": ops.bitwise_left_shift,
        "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar": ops.bitwise_right_shift,
        "logical_and": ops.logical_and,
        "logical_or": ops.logical_or,
        "logical_xor": ops.logical_xor,
        "bitwise_and.Tensor bitwise_and.Scalar": ops.bitwise_and,
        "bitwise_or.Tensor bitwise_or.Scalar": ops.bitwise_or,
        "bitwise_xor.Tensor bitwise_xor.Scalar": ops.bitwise_xor,
    },
    promotes=True,
)
rows(
    {
        "where.self": ops.where,
        "leaky_relu": ops.leaky_relu,
        "softplus": ops.softplus,
        "prelu": ops.prelu,
        "gelu": ops.gelu,
        "clamp clamp.Tensor hardtanh": ops.clip,
        "clamp_min clamp_min.Tensor": ops.maximum,
        "clamp_max clamp_max.Tensor": ops.minimum,
    }
)


@row("add.Tensor", "add.Scalar", promotes=True)
def _add(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x + y if alpha == 1 else x + y * alpha


@row("sub.Tensor", "sub.Scalar", promotes=True)
def _sub(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x - y if alpha == 1 else x - y * alpha


@row("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode", promotes=True)
def _div(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return x / y
    if rounding_mode == "floor":
        return ops.floor_divide(x, y)
    return quotient_toward_zero(x, y)


def _without_nan(function: Row) -> Row:
    def both(x: Node, y: Node) -> Node:
        if x.dtype not in FLOATS:
            return function(x, y)
        return ops.where(ops.isnan(x), y, ops.where(ops.isnan(y), x, function(x, y)))

    return both


rows({"fmax": _without_nan(ops.maximum), "fmin": _without_nan(ops.minimum)}, promotes=True)


@row("elu")
def _elu(x: Node, alpha: float = 1.0, scale: float = 1.0, inside: float = 1.0) -> Node:
    if scale == inside == 1:
        return ops.elu(x, alpha)
    return ops.where(x > 0, x, alpha * ops.expm1(ops.minimum(x, 0) * inside)) * scale

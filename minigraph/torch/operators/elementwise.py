"""Rows of elementwise operators."""

from __future__ import annotations

import math
from typing import Any

from minigraph import ops
from minigraph.graph import FLOATS, Node, as_node
from minigraph.ops.arithmetic import quotient_toward_zero, remainder_toward_zero
from minigraph.torch.operators.table import Row, row, rows

# Operators that have the name of the op which computes them.
NAMESAKES = """abs acos acosh asin asinh atan atan2 atanh ceil cos cosh erf erfc exp expm1 floor
hypot isfinite isinf isnan log log10 log1p log2 logaddexp logical_and logical_not logical_or
logical_xor maximum minimum nextafter positive reciprocal relu relu6 round rsqrt sigmoid sign
signbit silu sin sinh sqrt square tan tanh trunc mish hardswish hardsigmoid"""
rows({name: getattr(ops, name) for name in NAMESAKES.split()}, promotes=True)
# Of two tensors, or of a tensor and a number.
BINARY: dict[str, Row] = {
    "add": lambda x, y, alpha=1: x + (y if alpha == 1 else y * alpha),
    "sub": lambda x, y, alpha=1: x - (y if alpha == 1 else y * alpha),
    "mul": ops.multiply,
    "copysign": ops.copysign,
    "remainder": ops.remainder,
    "fmod": remainder_toward_zero,
    "eq": ops.equal,
    "ne": ops.not_equal,
    "lt": ops.less,
    "le": ops.less_equal,
    "gt": ops.greater,
    "ge": ops.greater_equal,
    "bitwise_and": ops.bitwise_and,
    "bitwise_or": ops.bitwise_or,
    "bitwise_xor": ops.bitwise_xor,
}
rows({f"{name}.Tensor {name}.Scalar": each for name, each in BINARY.items()}, promotes=True)
rows(
    {
        "neg": ops.negative,
        "bitwise_not": ops.bitwise_invert,
        "sgn": ops.sign,
        "exp2 special_exp2": lambda x: ops.pow(2.0, x),
        "pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar": ops.pow,
        "floor_divide floor_divide.Scalar": ops.floor_divide,
        "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar": ops.bitwise_left_shift,
        "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar": ops.bitwise_right_shift,
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
        "clamp clamp.Tensor": ops.clip,
    }
)


@row("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode", promotes=True)
def _div(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return x / y
    if rounding_mode == "floor":
        return ops.floor_divide(x, y)
    return quotient_toward_zero(x, y)


def _skipping_nan(extremum: Row, precedes: Row) -> Row:
    def compute(x: Node, y: Node) -> Node:
        if x.dtype not in FLOATS:
            return extremum(x, y)
        return ops.where(ops.isnan(y) | precedes(x, y), x, y)

    return compute


rows({"fmax": _skipping_nan(ops.maximum, ops.greater_equal)}, promotes=True)
rows({"fmin": _skipping_nan(ops.minimum, ops.less_equal)}, promotes=True)


@row("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", promotes=True)
def _xlogy(x: Any, y: Any) -> Node:
    x, y = as_node(x), as_node(y)
    # Where x is 0 the result is 0, and so is its gradient for x unless y has a finite logarithm.
    is_zero = (x == 0) & ((y <= 0) | ops.isinf(y))
    return x * ops.log(ops.where(is_zero, 1, y))


@row("sinc", promotes=True)
def _sinc(x: Node) -> Node:
    angle = ops.where(x == 0, 1, x * math.pi)
    return ops.where(x == 0, 1, ops.sin(angle) / angle)


# Of Lanczos' approximation of the gamma function, with g = 7.
LANCZOS = (
    *(0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313),
    *(-176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6),
    1.5056327351493116e-7,
)


@row("lgamma")
def log_gamma(x: Node) -> Node:
    """Return the logarithm of the absolute value of the gamma function, in float64."""
    x = ops.astype(x, "float64")
    reflected = x < 0.5  # to 1 - x
    z = ops.where(reflected, -x, x - 1)
    sums = LANCZOS[0] + sum(c / (z + i) for i, c in enumerate(LANCZOS[1:], 1))
    y = (z + 0.5) * (ops.log(z + 7.5) - 1) - 7 + ops.log(sums) + 0.5 * math.log(2 * math.pi)
    sine = ops.sin(math.pi * ops.where(reflected, x - ops.stop_gradient(ops.round(x)), 0.5))
    y = ops.where(reflected, math.log(math.pi) - ops.log(ops.abs(sine)) - y, y)
    return y - ops.stop_gradient(ops.where((x == 1) | (x == 2), y, 0))  # 0 to the last digit


@row("clamp_min", "clamp_min.Tensor")
def _clamp_min(x: Node, low: Any) -> Node:
    # A float at the bound gets the whole gradient; with `maximum` each operand would get a half.
    return ops.clip(x, low) if x.dtype in FLOATS else ops.maximum(x, low)


@row("clamp_max", "clamp_max.Tensor")
def _clamp_max(x: Node, high: Any) -> Node:
    return ops.clip(x, None, high) if x.dtype in FLOATS else ops.minimum(x, high)


@row("rrelu_with_noise_functional")
def _rrelu(
    x: Node, noise: Node, low: float, high: float, training: bool, *unused: Any
) -> tuple[Node, Node]:
    slope = ops.random_uniform(x.shape, low, high, x.dtype) if training else (low + high) / 2
    return ops.where(x <= 0, x * slope, x), ops.where(x <= 0, slope, 1) if training else noise


@row("hardtanh")
def _hardtanh(x: Node, low: float = -1.0, high: float = 1.0) -> Node:
    outside = (x <= low) | (x >= high)  # without a slope at the bounds, where `clip` has one
    return ops.where(outside, ops.clip(ops.stop_gradient(x), low, high), x)


@row("elu")
def _elu(x: Node, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Node:
    if scale == input_scale == 1:
        return ops.elu(x, alpha)
    return ops.where(x > 0, x, alpha * ops.expm1(ops.clip(x, None, 0) * input_scale)) * scale


@row("celu")
def _celu(x: Node, alpha: float = 1.0) -> Node:
    return _elu(x, alpha, 1.0, 1 / alpha)

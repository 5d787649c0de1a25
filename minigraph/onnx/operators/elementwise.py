"""Rows of operators that compute each element from those in its place."""

from __future__ import annotations

import functools
from typing import Any

from minigraph import ops
from minigraph.graph import FLOATS, INTEGERS, Node
from minigraph.interchange.division import quotient_toward_zero, remainder_toward_zero
from minigraph.onnx.operators.table import MICROSOFT, row, rows
from minigraph.onnx.tensors import dtype_of
from minigraph.onnx.values import as_expression, sizes_in

NAMESAKES = """Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Equal Erf Exp Floor Greater
HardSwish IsNaN Less Log Mish Reciprocal Relu Round Sigmoid Sign Sin Sinh Softplus Sqrt Tan Tanh
Where"""
rows({name: getattr(ops, name.lower()) for name in NAMESAKES.split()})
for prefix, kind in (("", "logical"), ("Bitwise", "bitwise")):
    rows({prefix + x: getattr(ops, f"{kind}_{x.lower()}") for x in ("And", "Or", "Xor")})
rows(
    {
        "Neg": ops.negative,
        "Not": ops.logical_not,
        "BitwiseNot": ops.bitwise_invert,
        "Sub": ops.subtract,
        "Mul": ops.multiply,
        "LessOrEqual": ops.less_equal,
        "GreaterOrEqual": ops.greater_equal,
        "Max": lambda *xs: functools.reduce(ops.maximum, xs),
        "Min": lambda *xs: functools.reduce(ops.minimum, xs),
        "Sum": lambda *xs: functools.reduce(ops.add, xs),
        "Mean": lambda *xs: functools.reduce(ops.add, xs) / len(xs),
        "LeakyRelu": lambda x, alpha=0.01: ops.leaky_relu(x, alpha),
        "Elu": lambda x, alpha=1.0: ops.elu(x, alpha),
        f"Gelu {MICROSOFT}.Gelu": lambda x, approximate="none": ops.gelu(x, approximate),
        "Pow": lambda x, y: ops.astype(ops.pow(x, y), x.dtype),
        "Clip": lambda x, low=None, high=None: ops.clip(x, low, high),
        "CastLike": lambda x, like, **unused: _cast(x, like.dtype),
    }
)


@row("Cast")
def _cast_to(x: Node, to: int, **unused: Any) -> Node:
    return _cast(x, dtype_of(to))


def _cast(x: Node, dtype: Any) -> Node:
    sizes = sizes_in(x)
    if sizes is not None and dtype in INTEGERS:
        return as_expression(sizes, dtype)
    return x if x.dtype == dtype else ops.astype(x, dtype)


@row("PRelu")
def _prelu(x: Node, slope: Node) -> Node:
    # Before opset 9, numbers were of channels.
    if slope.ndim == 1 and x.ndim > 1 and slope.shape != x.shape[-1:]:
        slope = ops.reshape(slope, (-1, *(1,) * (x.ndim - 2)))
    return ops.where(x < 0, x * slope, x)


@row("Div")
def _div(x: Node, y: Node) -> Node:
    if x.dtype in FLOATS:
        return x / y
    # Of sizes, which are never negative, all roundings are one.
    return ops.floor_divide(x, y) if sizes_in(x) is not None else quotient_toward_zero(x, y)


@row("Mod")
def _mod(x: Node, y: Node, fmod: int = 0) -> Node:
    return remainder_toward_zero(x, y) if fmod else ops.remainder(x, y)


@row("BitShift")
def _bit_shift(x: Node, y: Node, direction: str) -> Node:
    shift = ops.bitwise_left_shift if direction == "LEFT" else ops.bitwise_right_shift
    return shift(x, y)


@row("IsInf")
def _is_inf(x: Node, detect_negative: int = 1, detect_positive: int = 1) -> Node:
    found = ops.isinf(x)
    found = found if detect_negative else ops.logical_and(found, x > 0)
    return found if detect_positive else ops.logical_and(found, x < 0)

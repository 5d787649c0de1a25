"""Rows of elementwise operators."""

from __future__ import annotations

import functools
from typing import Any

from minigraph import ops
from minigraph.graph import FLOATS, INTEGERS, Node
from minigraph.onnx.exports import FUNCTIONS
from minigraph.onnx.operators.table import MICROSOFT, row, rows
from minigraph.onnx.tensors import dtype_of
from minigraph.onnx.values import as_expression, constant_value, sizes_in
from minigraph.ops.arithmetic import quotient_toward_zero, remainder_toward_zero
from minigraph.ops.exponential import PRODUCTS

rows({name: getattr(ops, function) for name, function in FUNCTIONS.items()})
rows(
    {
        "Max": lambda *xs: functools.reduce(ops.maximum, xs),
        "Min": lambda *xs: functools.reduce(ops.minimum, xs),
        "Sum": lambda *xs: functools.reduce(ops.add, xs),
        "Mean": lambda *xs: functools.reduce(ops.add, xs) / len(xs),
        "LeakyRelu": lambda x, alpha=0.01: ops.leaky_relu(x, alpha),
        "Elu": lambda x, alpha=1.0: ops.elu(x, alpha),
        f"Gelu {MICROSOFT}.Gelu": lambda x, approximate="none": ops.gelu(x, approximate),
        f"{MICROSOFT}.BiasGelu": lambda x, bias: ops.gelu(x + bias),
        f"{MICROSOFT}.FastGelu": lambda x, bias=0: ops.gelu(x + bias, "tanh"),
        f"{MICROSOFT}.QuickGelu": lambda x, alpha=1.702: x * ops.sigmoid(x * alpha),
        "Clip": lambda x, low=None, high=None: ops.clip(x, low, high),
        "Cast": lambda x, to, **unused: _cast(x, dtype_of(to)),
        "Mod": lambda x, y, fmod=0: remainder_toward_zero(x, y) if fmod else ops.remainder(x, y),
        "BitShift": lambda x, y, direction: (
            ops.bitwise_left_shift if direction == "LEFT" else ops.bitwise_right_shift
        )(x, y),
        "CastLike": lambda x, like, **unused: _cast(x, like.dtype),
    }
)


def _cast(x: Node, dtype: Any) -> Node:
    sizes = sizes_in(x)
    if sizes is not None and dtype in INTEGERS:
        return as_expression(sizes, dtype)
    return x if x.dtype == dtype else ops.astype(x, dtype)


@row("Pow")
def _pow(x: Node, y: Node) -> Node:
    value, exponent = constant_value(y), y
    if value is not None and value.size == 1 and y.ndim <= x.ndim and value.item() in PRODUCTS:
        exponent = value.item()  # ops.pow turns the number 2 into a product
    return ops.astype(ops.pow(x, exponent), x.dtype)


@row("PRelu")
def _prelu(x: Node, slope: Node) -> Node:
    # Before opset 9, a vector had one slope per channel.
    if slope.ndim == 1 and x.ndim > 1 and slope.shape != x.shape[-1:]:
        slope = ops.reshape(slope, (-1, *(1,) * (x.ndim - 2)))
    return ops.where(x < 0, x * slope, x)


@row("Div")
def _div(x: Node, y: Node) -> Node:
    if x.dtype in FLOATS:
        return x / y
    # Sizes are never negative, so both divisions agree.
    return ops.floor_divide(x, y) if sizes_in(x) is not None else quotient_toward_zero(x, y)


@row("IsInf")
def _is_inf(x: Node, detect_negative: int = 1, detect_positive: int = 1) -> Node:
    y = ops.isinf(x)
    y = y if detect_negative else ops.logical_and(y, x > 0)
    return y if detect_positive else ops.logical_and(y, x < 0)

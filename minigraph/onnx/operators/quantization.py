"""Rows of quantised operators, which round as ONNX defines and compute in floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph import ops
from minigraph.errors import warn_once
from minigraph.graph import DType, Node, UndecidedSize, limits
from minigraph.onnx.operators.images import convolution
from minigraph.onnx.operators.layers import LSTM_ACTIVATIONS, layer, long_short_term
from minigraph.onnx.operators.table import MICROSOFT, ROWS, Row, row, rows
from minigraph.onnx.tensors import dtype_of
from minigraph.onnx.values import value_of

UINT8 = np.dtype("uint8")
WARNING = "quantised operators of ONNX are computed in floats, so they are no faster than floats"


def _broadcastable(x: Node | None, like: Node, axis: int, block_size: int = 0) -> Node | None:
    """Return a scale or a zero point in a shape that broadcasts against its tensor."""
    if x is None or x.size == 1:
        return None if x is None else ops.reshape(x, ())
    axis %= like.ndim
    if block_size:
        x = ops.repeat(x, block_size, axis)
        return x[(*(slice(None),) * axis, slice(0, like.shape[axis]))]
    return ops.reshape(x, (-1, *(1,) * (like.ndim - 1 - axis)))


@row("QuantizeLinear")
def _quantize(
    x: Node, scale: Node, zero: Node | None = None, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0, saturate: int = 1, precision: int = 0,
) -> Node:  # fmt: skip
    dtype = dtype_of(output_dtype) if output_dtype else UINT8 if zero is None else zero.dtype
    scaled = ops.astype(x, scale.dtype) / _broadcastable(scale, x, axis, block_size)
    return _rounded(scaled, _broadcastable(zero, x, axis, block_size), dtype)


def _rounded(x: Node, zero: Node | None, dtype: DType) -> Node:
    """Return floats as the nearest integers of a dtype; `zero` is the integer that means 0."""
    warn_once(WARNING)
    low, high = limits(dtype)
    x = ops.round(x) if zero is None else ops.round(x) + ops.astype(zero, x.dtype)
    return ops.astype(ops.clip(x, float(low), float(high)), dtype)


@row("DequantizeLinear")
def _dequantize(
    x: Node, scale: Node, zero: Node | None = None, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0,
) -> Node:  # fmt: skip
    y = _centred(x, _broadcastable(zero, x, axis, block_size), scale.dtype)
    y = y * _broadcastable(scale, x, axis, block_size)
    return ops.astype(y, dtype_of(output_dtype)) if output_dtype else y


def _centred(x: Node, zero: Node | None, dtype: Any) -> Node:
    warn_once(WARNING)
    y = ops.astype(x, dtype)
    return y if zero is None else y - ops.astype(zero, dtype)


def _is_exact_in_float32(weights: Node, axes: tuple[int, ...]) -> bool:
    """Return whether sums along `axes` of these weights times bytes are exact in float32."""
    try:
        largest = 255 * abs(value_of(weights)).sum(axes).max(initial=0)
    except UndecidedSize:
        return False
    return bool(largest < 1 << 24)


@row("MatMulInteger")
def _matmul_integer(
    a: Node, b: Node, zero_a: Node | None = None, zero_b: Node | None = None
) -> Node:
    zero_a = zero_a if zero_a is None or zero_a.ndim != 1 else ops.expand_dims(zero_a, -1)
    weights = _centred(b, zero_b, "int32")
    dtype = "float32" if _is_exact_in_float32(weights, (-min(b.ndim, 2),)) else "int32"
    y = ops.matmul(_centred(a, zero_a, dtype), ops.astype(weights, dtype))
    return ops.astype(y, "int32")


@row("ConvInteger")
def _conv_integer(
    x: Node, w: Node, zero_x: Node | None = None, zero_w: Node | None = None, **window: Any
) -> Node:
    weights = _centred(w, _broadcastable(zero_w, w, 0), "int32")
    dtype = "float32" if _is_exact_in_float32(weights, tuple(range(1, w.ndim))) else "float64"
    images = _centred(x, _broadcastable(zero_x, x, 1), dtype)
    return ops.astype(convolution(images, ops.astype(weights, dtype), **window), "int32")


@row("QLinearMatMul")
def _qlinear_matmul(
    a: Node, scale_a: Node, zero_a: Node, b: Node, scale_b: Node, zero_b: Node, scale: Node,
    zero: Node,
) -> Node:  # fmt: skip
    x, y = _dequantize(a, scale_a, zero_a, -2), _dequantize(b, scale_b, zero_b, -1)
    return _quantize(ops.matmul(x, y), scale, zero, -1)


@row("QLinearConv")
def _qlinear_conv(
    x: Node, scale_x: Node, zero_x: Node, w: Node, scale_w: Node, zero_w: Node, scale: Node,
    zero: Node, bias: Node | None = None, **window: Any,
) -> Node:  # fmt: skip
    real = _dequantize(x, scale_x, zero_x), _dequantize(w, scale_w, zero_w, 0)
    b = None if bias is None else ops.astype(bias, scale_x.dtype) * (scale_x * scale_w)
    return _quantize(convolution(*real, b, **window), scale, zero)


def _dequantized(compute: Row) -> Row:
    """Return the row of an operator whose operands and result have scales and zero points."""

    def call(*arguments: Node, **attributes: Any) -> Node:
        *operands, scale, zero = arguments
        reals = [_dequantize(*operands[i : i + 3]) for i in range(0, len(operands), 3)]
        return _quantize(compute(*reals, **attributes), scale, zero)

    return call


def _pool(pool: Row) -> Row:
    """Return the row of a quantised pool, whose images may have the channels last."""

    def call(x: Node, channels_last: int = 0, **window: Any) -> Node:
        if not channels_last:
            return pool(x, **window)
        return ops.moveaxis(pool(ops.moveaxis(x, -1, 1), **window), 1, -1)

    return _dequantized(call)


@row(f"{MICROSOFT}.QGemm")
def _qgemm(
    a: Node, scale_a: Node, zero_a: Node, b: Node, scale_b: Node, zero_b: Node,
    c: Node | None = None, scale: Node | None = None, zero: Node | None = None, *,
    alpha: float = 1.0, transA: int = 0, transB: int = 0,
) -> Node:  # fmt: skip
    x, w = _dequantize(a, scale_a, zero_a), _dequantize(b, scale_b, zero_b, 1 - transB)
    term = None if c is None else ops.astype(c, x.dtype) * (scale_a * scale_b)
    y = ROWS["Gemm"](x, w, term, alpha=alpha, beta=alpha, transA=transA, transB=transB)
    return y if scale is None else _quantize(y, scale, zero)


_concat = _dequantized(lambda *xs, axis: ops.concat(xs, axis))
rows(
    {
        f"{MICROSOFT}.QLinearAdd": _dequantized(ops.add),
        f"{MICROSOFT}.QLinearMul": _dequantized(ops.multiply),
        f"{MICROSOFT}.QLinearSigmoid": _dequantized(ops.sigmoid),
        f"{MICROSOFT}.QLinearLeakyRelu": _dequantized(
            lambda x, alpha=0.01: ops.leaky_relu(x, alpha),
        ),
        f"{MICROSOFT}.QLinearSoftmax": _dequantized(
            lambda x, axis=-1, opset=13: ops.softmax(x, axis),
        ),
        f"{MICROSOFT}.QLinearAveragePool": _pool(ROWS["AveragePool"]),
        f"{MICROSOFT}.QLinearGlobalAveragePool": _pool(ROWS["GlobalAveragePool"]),
        f"{MICROSOFT}.QLinearWhere": lambda condition, *operands: _dequantized(
            lambda x, y: ops.where(condition, x, y)
        )(*operands),
        f"{MICROSOFT}.QLinearConcat": lambda scale, zero, *xs, axis: _concat(
            *xs, scale, zero, axis=axis
        ),
    }
)


def _to_bytes_and_back(x: Node) -> Node:
    """Return x rounded as DynamicQuantizeLinear rounds it."""
    low = ops.minimum(ops.min(x), 0)
    scale = (ops.maximum(ops.max(x), 0) - low) / 255
    scale = ops.where(scale == 0, 1, scale)
    zero = ops.round(-low / scale)
    return (ops.clip(ops.round(x / scale) + zero, 0, 255) - zero) * scale


_lstm = layer(
    lambda state, x, **how: long_short_term((_to_bytes_and_back(state[0]), state[1]), x, **how),
    LSTM_ACTIVATIONS,
)


@row(f"{MICROSOFT}.DynamicQuantizeLSTM")
def _dynamic_quantize_lstm(x: Node, w: Node, r: Node, *inputs: Node | None, **named: Any) -> Any:
    """Return an LSTM with integer weights, which have one row per input."""
    *operands, scale_w, zero_w, scale_r, zero_r = inputs
    warn_once(WARNING)
    reals = []
    for weights, *numbers in ((w, scale_w, zero_w), (r, scale_r, zero_r)):
        scale, zero = (ops.reshape(number, (w.shape[0], 1, -1)) for number in numbers)
        real = (ops.astype(weights, x.dtype) - ops.astype(zero, x.dtype)) * scale
        reals.append(ops.swapaxes(real, 1, 2))
    return _lstm(_to_bytes_and_back(x), *reals, *operands, **named)

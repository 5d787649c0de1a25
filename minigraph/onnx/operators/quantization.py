"""Rows of operators of quantised models, which round like the operators and compute in floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph import ops
from minigraph.errors import warn_once
from minigraph.graph import DType, Node, limits
from minigraph.onnx.operators.images import convolution
from minigraph.onnx.operators.table import row
from minigraph.onnx.tensors import dtype_of

UINT8 = np.dtype("uint8")
WARNING = "quantised operators of ONNX are computed in floats, which is no faster than floats"


def _along(x: Node | None, like: Node, axis: int, block_size: int = 0) -> Node | None:
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
    scaled = ops.astype(x, scale.dtype) / _along(scale, x, axis, block_size)
    return _rounded(scaled, _along(zero, x, axis, block_size), dtype)


def _rounded(x: Node, zero: Node | None, dtype: DType) -> Node:
    """Return floats as the nearest integers of a dtype, in which `zero` stands for 0."""
    warn_once(WARNING)
    low, high = limits(dtype)
    x = ops.round(x) if zero is None else ops.round(x) + ops.astype(zero, x.dtype)
    return ops.astype(ops.clip(x, float(low), float(high)), dtype)


@row("DequantizeLinear")
def _dequantize(
    x: Node, scale: Node, zero: Node | None = None, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0,
) -> Node:  # fmt: skip
    y = _centred(x, _along(zero, x, axis, block_size), scale.dtype)
    y = y * _along(scale, x, axis, block_size)
    return ops.astype(y, dtype_of(output_dtype)) if output_dtype else y


def _centred(x: Node, zero: Node | None, dtype: Any) -> Node:
    warn_once(WARNING)
    y = ops.astype(x, dtype)
    return y if zero is None else y - ops.astype(zero, dtype)


@row("MatMulInteger")
def _matmul_integer(
    a: Node, b: Node, zero_a: Node | None = None, zero_b: Node | None = None
) -> Node:
    zero_a = zero_a if zero_a is None or zero_a.ndim != 1 else ops.expand_dims(zero_a, -1)
    return ops.matmul(_centred(a, zero_a, "int32"), _centred(b, zero_b, "int32"))


@row("ConvInteger")
def _conv_integer(
    x: Node, w: Node, zero_x: Node | None = None, zero_w: Node | None = None, **window: Any
) -> Node:
    weights = _centred(w, _along(zero_w, w, 0), "float64")  # in which the sums are exact
    y = convolution(_centred(x, _along(zero_x, x, 1), "float64"), weights, **window)
    return ops.astype(y, "int32")


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

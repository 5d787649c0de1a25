"""Pooling in C: oneDNN's max pooling ignores NaN, and reads -inf as -3.4e38.

In lanes, kernels compare bfloat16 as float32 in registers, and sum gradients in float32, or in a
wider type if many windows overlap.  In nchw, strided loads of bfloat16 are slow, so the kernels of
float32 are faster.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from minigraph.devices.cpu import onednn
from minigraph.devices.cpu.handwritten import argmax_text
from minigraph.devices.cpu.indexing import accumulator_type, index_type
from minigraph.devices.cpu.kernel import KernelTable, NativeKernel, call
from minigraph.devices.cpu.primitives import MIN_GENERATED_WIDTH
from minigraph.graph import BFLOAT16, Node, Shape
from minigraph.jit.expression import c_type, limits
from minigraph.jit.macros import with_macros
from minigraph.jit.small_float import FLOAT16, FLOAT32, SMALL_FLOATS, compute_dtype, conversion
from minigraph.jit.source import KernelSource
from minigraph.ops.layout import LaidOut
from minigraph.ops.pooling import (
    AvgPool2d,
    AvgPool2dBackward,
    MaxPool2d,
    MaxPool2dBackward,
    Pooling,
)
from minigraph.ops.reduction import MAX_PLAIN_SUM
from minigraph.program import round_up

MAX_TEXT, AVG_TEXT = (
    Path(__file__).with_name(f"{kind}_pool2d.c").read_text() for kind in ("max", "avg")
)
MIN_ARGMAX_WINDOW = 48  # elements from which on a window is reduced by the argmax of a long row
MAX_CELLS = 2048  # cells that max pooling compares at once
MAX_WINDOW_WIDTH = 1024  # elements of a row of a window
CONVERSION_PAIRS = ((BFLOAT16, FLOAT32), (FLOAT32, BFLOAT16))
CONVERSION_FUNCTIONS = tuple(
    dict.fromkeys(part for pair in CONVERSION_PAIRS for part in conversion(*pair)[1])
)


def max_pool2d(op: MaxPool2d | MaxPool2dBackward, node: Node, threads: int) -> NativeKernel | None:
    backward, pooling, value = isinstance(op, MaxPool2dBackward), op.pooling, node.specs[0].dtype
    x, y = _images(node, backward)
    index = (node.inputs[1].spec if backward else node.specs[1]).dtype
    lanes = math.prod(x[4:])
    small = value in SMALL_FLOATS
    if small and (value != BFLOAT16 or lanes == 1):
        return None
    is_partition = _is_partition(pooling)
    count = math.prod(pooling.window)
    if (
        not backward
        and lanes == 1
        and is_partition
        and count > MIN_ARGMAX_WINDOW
        and x[3] == pooling.window[1]
    ):
        argmax_call = call(
            argmax_text(value, index, with_maxima=True), threads, math.prod(x) // count, count, 1
        )
        return NativeKernel(node, [argmax_call])
    compute = compute_dtype(value)
    windows_per_pixel = zip(pooling.window, pooling.stride, strict=True)
    long_sum = (
        backward
        and not small
        and math.prod(math.ceil(k / t) for k, t in windows_per_pixel) > MAX_PLAIN_SUM
    )
    separate = backward and (small or long_sum)
    across = math.ceil(pooling.window[1] / pooling.stride[1]) * pooling.stride[1]
    cells, c_index = max(MAX_CELLS, across), index_type(compute)
    span = round_up(cells + pooling.window[1])
    text = with_macros(
        MAX_TEXT,
        T=c_type(value),
        W=accumulator_type(value) if long_sum else c_type(compute),
        IN_SCRATCH=int(separate),
        P=c_type(index),
        MASK=f"int{8 * compute.itemsize}_t",
        INDEX=c_index,
        ROW_WINDOWS=int(is_partition and pooling.window[0] == 1),
        CELLS=cells,
        SPAN=span,
        LOWEST=limits(compute)["lowest"],
        LANES=lanes,
        BLOCK=math.gcd(lanes, onednn.block()),
        BACKWARD=int(backward),
        BFLOAT16=int(small),
        **_window_macros(pooling),
    )
    (top, _), (left, _) = pooling.padding
    values = threads, x[0] * x[1], *x[2:4], *y[2:4], top, left
    source = KernelSource(text, CONVERSION_FUNCTIONS if small else ())
    thread_bytes = math.prod(x[2:]) * compute.itemsize * (1 + long_sum) if separate else 0
    if not backward and lanes == 1:
        thread_bytes = span * 2 * (compute.itemsize + max(compute.itemsize, 4))
    return NativeKernel(node, [call(source, *values, scratch=True)], threads * thread_bytes)


def avg_pool2d(op: AvgPool2d | AvgPool2dBackward, node: Node, threads: int) -> NativeKernel | None:
    backward = isinstance(op, AvgPool2dBackward)
    pool = op.pool if isinstance(op, AvgPool2dBackward) else op
    pooling, (x, y) = pool.pooling, _images(node, backward)
    window, stride = pooling.window, pooling.stride
    windows_per_pixel = (
        math.ceil(k / t) if backward else k for k, t in zip(window, stride, strict=True)
    )
    long_sum, is_partition = math.prod(windows_per_pixel) > MAX_PLAIN_SUM, _is_partition(pooling)
    if (
        node.dtype == FLOAT16
        or window[1] > MAX_WINDOW_WIDTH
        or (is_partition and (long_sum or window[1] >= MIN_GENERATED_WIDTH))
    ):
        return None
    lanes, small = math.prod(x[4:]), node.dtype == BFLOAT16
    compute = compute_dtype(node.dtype)
    text = with_macros(
        AVG_TEXT,
        T=c_type(node.dtype),
        W=accumulator_type(compute) if long_sum else c_type(compute),
        LANES=lanes,
        BLOCK=math.gcd(lanes, onednn.block()),
        BACKWARD=int(backward),
        BFLOAT16=int(small),
        **_window_macros(pooling),
    )
    borders = []
    for n, pad, (pad_before, pad_after) in zip(x[2:4], pool.pad, pooling.padding, strict=True):
        counted = pad * pool.count_padding
        borders += [pad_before, -counted, n + min(counted, pad_after)]
    source = KernelSource(text, CONVERSION_FUNCTIONS if small else ())
    return NativeKernel(node, [call(source, threads, x[0] * x[1], *x[2:4], *y[2:4], *borders)])


def _images(node: Node, backward: bool) -> tuple[Shape, Shape]:
    """Return the shapes of the images before and after pooling."""
    read, written = node.inputs[0].shape, node.specs[0].shape
    return (written, read) if backward else (read, written)


def _is_partition(pooling: Pooling) -> bool:
    """Whether windows neither overlap nor have borders."""
    return pooling.stride == pooling.window and not any(map(any, pooling.padding))


def _window_macros(pooling: Pooling) -> dict[str, object]:
    names = ("WINDOW_H", "WINDOW_W", "STRIDE_H", "STRIDE_W")
    return dict(zip(names, (*pooling.window, *pooling.stride), strict=True))


def laid_out(op: LaidOut, node: Node, threads: int) -> NativeKernel | None:
    """Return the kernel of pooling if all images have the same layout, else None."""
    if len({*op.lanes_in, *op.lanes_out}) > 1:
        return None
    pool: Any = op.plain
    return KERNELS[type(pool)](pool, node, threads) if type(pool) in KERNELS else None


KERNELS: KernelTable = {
    AvgPool2d: avg_pool2d,
    AvgPool2dBackward: avg_pool2d,
    MaxPool2d: max_pool2d,
    MaxPool2dBackward: max_pool2d,
    LaidOut: laid_out,
}

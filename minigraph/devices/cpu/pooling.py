"""Pooling in C: oneDNN's max pooling ignores NaN, and reads -inf as -3.4e38.

bfloat16 in lanes is compared in float32, in registers; its gradients are summed in float32, those
of windows that overlap much in a wider type.  In nchw, strided loads of bfloat16 are slow, so the
kernels of float32 are faster.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from minigraph.devices.cpu import onednn
from minigraph.devices.cpu.handwritten import argmax_text
from minigraph.devices.cpu.indexing import place_type, total_type
from minigraph.devices.cpu.kernel import KernelTable, NativeKernel, call
from minigraph.devices.cpu.primitives import WIDE
from minigraph.graph import BFLOAT16, DType, Node, Shape
from minigraph.jit.c.body import limits
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.jit.small_float import FLOAT16, FLOAT32, SMALL_FLOATS, conversion, working
from minigraph.jit.source import KernelSource
from minigraph.ops.layout import LaidOut
from minigraph.ops.pooling import (
    AvgPool2d,
    AvgPool2dBackward,
    MaxPool2d,
    MaxPool2dBackward,
    Pooling,
)
from minigraph.ops.reduction import FEW
from minigraph.program.steps import round_up

MAX, AVG = (Path(__file__).with_name(f"{kind}_pool2d.c").read_text() for kind in ("max", "avg"))
LONG = 48  # elements of a window from which on argmax of a long row finds the largest
ROOM = 2048  # cells that max pooling compares at once
MOST = 1024  # elements of a row of a window
PAIRS = ((BFLOAT16, FLOAT32), (FLOAT32, BFLOAT16))
CONVERTED = tuple(dict.fromkeys(part for pair in PAIRS for part in conversion(*pair)[1]))


def _pooling_kernel(
    node: Node,
    pooling: Pooling,
    images: tuple[Shape, Shape],
    dtypes: tuple[DType, DType],
    backward: bool,
    threads: int,
) -> NativeKernel | None:
    """Return the max-pooling kernel between `images` before and after, with values and places."""
    x, y = images
    value, place = dtypes
    lanes = math.prod(x[4:])
    small = value in SMALL_FLOATS
    if small and (value != BFLOAT16 or lanes == 1):
        return None
    apart = _is_apart(pooling)
    count = math.prod(pooling.window)
    if not backward and lanes == 1 and apart and count > LONG and x[3] == pooling.window[1]:
        found = call(argmax_text(value, place, best=True), threads, math.prod(x) // count, count, 1)
        return NativeKernel(node, [found])
    wide = working(value)
    reach = zip(pooling.window, pooling.stride, strict=True)
    many = backward and not small and math.prod(-(-k // t) for k, t in reach) > FEW
    separate = backward and (small or many)
    across = -(-pooling.window[1] // pooling.stride[1]) * pooling.stride[1]
    room, index = max(ROOM, across), place_type(wide)
    span = round_up(room + pooling.window[1])
    text = with_macros(
        MAX,
        T=c_type(value),
        W=total_type(value) if many else c_type(wide),
        IN_SCRATCH=int(separate),
        P=c_type(place),
        MASK=f"int{8 * wide.itemsize}_t",
        INDEX=index,
        ROW_WINDOWS=int(apart and pooling.window[0] == 1 and x[3] == y[3] * pooling.stride[1]),
        CELLS=room,
        SPAN=span,
        LOWEST=limits(wide)["lowest"],
        LANES=lanes,
        BLOCK=math.gcd(lanes, onednn.block()),
        BACKWARD=int(backward),
        BFLOAT16=int(small),
        **_sizes(pooling),
    )
    (top, _), (left, _) = pooling.padding
    values = threads, x[0] * x[1], *x[2:4], *y[2:4], top, left
    source = KernelSource(text, CONVERTED if small else ())
    each = math.prod(x[2:]) * wide.itemsize * (1 + many) if separate else 0
    if not backward and lanes == 1:
        each = span * 2 * (wide.itemsize + max(wide.itemsize, 4))
    return NativeKernel(node, [call(source, *values, scratch=True)], threads * each)


def max_pool2d(op: MaxPool2d, node: Node, threads: int) -> NativeKernel | None:
    y, place = node.specs
    images = node.inputs[0].shape, y.shape
    return _pooling_kernel(node, op.pooling, images, (y.dtype, place.dtype), False, threads)


def max_pool2d_backward(op: MaxPool2dBackward, node: Node, threads: int) -> NativeKernel | None:
    dy, place = node.inputs
    images = node.shape, dy.shape
    return _pooling_kernel(node, op.pooling, images, (dy.dtype, place.dtype), True, threads)


def avg_pool2d(op: AvgPool2d, node: Node, threads: int) -> NativeKernel | None:
    return _averages(node, op, (node.inputs[0].shape, node.shape), threads)


def avg_pool2d_backward(op: AvgPool2dBackward, node: Node, threads: int) -> NativeKernel | None:
    return _averages(node, op.pool, (node.shape, node.inputs[0].shape), threads, backward=True)


def _averages(
    node: Node, pool: AvgPool2d, images: tuple[Shape, Shape], threads: int, backward: bool = False
) -> NativeKernel | None:
    """Return the average-pooling kernel between `images` before and after."""
    pooling, (x, y) = pool.pooling, images
    window, stride = pooling.window, pooling.stride
    reach = (-(-k // t) if backward else k for k, t in zip(window, stride, strict=True))
    many, apart = math.prod(reach) > FEW, _is_apart(pooling)
    if node.dtype == FLOAT16 or window[1] > MOST or (apart and (many or window[1] >= WIDE)):
        return None
    lanes, small = math.prod(x[4:]), node.dtype == BFLOAT16
    text = with_macros(
        AVG,
        T=c_type(node.dtype),
        W=total_type(working(node.dtype)) if many else c_type(working(node.dtype)),
        LANES=lanes,
        BLOCK=math.gcd(lanes, onednn.block()),
        BACKWARD=int(backward),
        BFLOAT16=int(small),
        **_sizes(pooling),
    )
    ends = []
    for n, pad, (before, behind) in zip(x[2:4], pool.pad, pooling.padding, strict=True):
        counted = pad * pool.count_padding
        ends += [before, -counted, n + min(counted, behind)]
    source = KernelSource(text, CONVERTED if small else ())
    return NativeKernel(node, [call(source, threads, x[0] * x[1], *x[2:4], *y[2:4], *ends)])


def _is_apart(pooling: Pooling) -> bool:
    """Whether windows neither overlap nor have borders."""
    return pooling.stride == pooling.window and not any(map(any, pooling.padding))


def _sizes(pooling: Pooling) -> dict[str, object]:
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
    AvgPool2dBackward: avg_pool2d_backward,
    MaxPool2d: max_pool2d,
    MaxPool2dBackward: max_pool2d_backward,
    LaidOut: laid_out,
}

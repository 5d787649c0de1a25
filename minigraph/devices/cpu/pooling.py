"""Max pooling in C: oneDNN's passes over NaN, and takes -3.4e38 for -inf."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.graph import DType, Node, Op, Shape
from minigraph.jit.c.body import limits
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.ops.layout import LaidOut
from minigraph.ops.pooling import MaxPool2d, MaxPool2dBackward, Pooling

TEXT = Path(__file__).with_name("max_pool2d.c").read_text()


def _pooling_kernel(
    node: Node,
    pooling: Pooling,
    images: tuple[Shape, Shape],
    dtypes: tuple[DType, DType],
    backward: bool,
    threads: int,
) -> NativeKernel:
    """Return the kernel between `images` before and after pooling, of values and places."""
    x, y = images
    value, place = dtypes
    lanes = math.prod(x[4:])
    text = with_macros(
        TEXT,
        T=c_type(value),
        P=c_type(place),
        MASK=f"int{8 * value.itemsize}_t",
        LOWEST=limits(value)["lowest"],
        LANES=lanes,
        BLOCK=math.gcd(lanes, 8),
        BACKWARD=int(backward),
        **dict(zip(("HEIGHT", "WIDTH"), pooling.window, strict=True)),
        **dict(zip(("DOWN", "ACROSS"), pooling.stride, strict=True)),
    )
    (top, _), (left, _) = pooling.padding
    return NativeKernel(node, [call(text, threads, x[0] * x[1], *x[2:4], *y[2:4], top, left)])


def max_pool2d(op: MaxPool2d, node: Node, threads: int) -> NativeKernel:
    y, place = node.specs
    images = node.inputs[0].shape, y.shape
    return _pooling_kernel(node, op.pooling, images, (y.dtype, place.dtype), False, threads)


def max_pool2d_backward(op: MaxPool2dBackward, node: Node, threads: int) -> NativeKernel:
    dy, place = node.inputs
    images = node.shape, dy.shape
    return _pooling_kernel(node, op.pooling, images, (dy.dtype, place.dtype), True, threads)


def laid_out(op: LaidOut, node: Node, threads: int) -> NativeKernel | None:
    """Return the kernel of max pooling if all images lie alike, else None."""
    if len({*op.lanes_in, *op.lanes_out}) > 1:
        return None
    match op.plain:
        case MaxPool2d():
            return max_pool2d(op.plain, node, threads)
        case MaxPool2dBackward():
            return max_pool2d_backward(op.plain, node, threads)
    return None


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {
    MaxPool2d: max_pool2d,
    MaxPool2dBackward: max_pool2d_backward,
    LaidOut: laid_out,
}

"""Max pooling in C: oneDNN's passes over NaN, and takes -3.4e38 for -inf.

bfloat16 in lanes is compared in float32, in registers, and its gradients are added up in float32,
those of windows that overlap much in a wider type than their own.
In nchw, strided loads of it are slow, and the kernels of float32 faster.
"""

from __future__ import annotations

import math
from pathlib import Path

from minigraph.devices.cpu import onednn
from minigraph.devices.cpu.indexing import total_type
from minigraph.devices.cpu.kernel import KernelTable, NativeKernel, call
from minigraph.graph import BFLOAT16, DType, Node, Shape
from minigraph.jit.c.body import limits
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.jit.small_float import FLOAT32, SMALL_FLOATS, conversion, working
from minigraph.jit.source import KernelSource
from minigraph.ops.layout import LaidOut
from minigraph.ops.pooling import MaxPool2d, MaxPool2dBackward, Pooling
from minigraph.ops.reduction import FEW

TEXT = Path(__file__).with_name("max_pool2d.c").read_text()
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
    """Return the kernel between `images` before and after pooling, of values and places."""
    x, y = images
    value, place = dtypes
    lanes = math.prod(x[4:])
    small = value in SMALL_FLOATS
    if small and (value != BFLOAT16 or lanes == 1):
        return None
    wide = working(value)
    reach = zip(pooling.window, pooling.stride, strict=True)
    many = backward and not small and math.prod(-(-k // t) for k, t in reach) > FEW
    separate = backward and (small or many)
    text = with_macros(
        TEXT,
        T=c_type(value),
        W=total_type(value) if many else c_type(wide),
        APART=int(separate),
        P=c_type(place),
        MASK=f"int{8 * wide.itemsize}_t",
        LOWEST=limits(wide)["lowest"],
        LANES=lanes,
        BLOCK=math.gcd(lanes, onednn.block()),
        BACKWARD=int(backward),
        BFLOAT16=int(small),
        **dict(zip(("HEIGHT", "WIDTH"), pooling.window, strict=True)),
        **dict(zip(("DOWN", "ACROSS"), pooling.stride, strict=True)),
    )
    (top, _), (left, _) = pooling.padding
    values = threads, x[0] * x[1], *x[2:4], *y[2:4], top, left
    source = KernelSource(text, CONVERTED if small else ())
    summed = threads * math.prod(x[2:]) * wide.itemsize * (1 + many) if separate else 0
    return NativeKernel(node, [call(source, *values, scratch=True)], summed)


def max_pool2d(op: MaxPool2d, node: Node, threads: int) -> NativeKernel | None:
    y, place = node.specs
    images = node.inputs[0].shape, y.shape
    return _pooling_kernel(node, op.pooling, images, (y.dtype, place.dtype), False, threads)


def max_pool2d_backward(op: MaxPool2dBackward, node: Node, threads: int) -> NativeKernel | None:
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


KERNELS: KernelTable = {
    MaxPool2d: max_pool2d,
    MaxPool2dBackward: max_pool2d_backward,
    LaidOut: laid_out,
}

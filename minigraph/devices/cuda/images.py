"""Pooling, local response normalisation, and moves of images between layouts, in CUDA."""

from __future__ import annotations

import math
import struct

from minigraph.devices.cuda.handwritten import (
    THREADS,
    Kernels,
    c_function,
    element,
    handwritten_kernel,
)
from minigraph.devices.cuda.kernel import CudaKernel
from minigraph.graph import DType, Node
from minigraph.jit.expression import c_type, limits
from minigraph.ops.elementwise import kind
from minigraph.ops.layout import LaidOut, Reorder
from minigraph.ops.normalization import LocalResponseNorm
from minigraph.ops.pooling import (
    AvgPool2d,
    AvgPool2dBackward,
    MaxPool2d,
    MaxPool2dBackward,
    Pooling,
)
from minigraph.ops.reduction import MAX_PLAIN_SUM

PLANES_PER_THREAD = 4  # planes that a thread computes at once
MAX_CELL_PIXELS = 4  # pixels of a cell, and windows that cover it: all are in registers
RESIDENT_BLOCKS = 3  # blocks of a multiprocessor: two would have too few loads in flight
MAX_UNROLLED = 16  # elements of a window up to which its rows are unrolled
VECTOR_BYTES, VECTORS_PER_ROW = 16, 8  # of an access of a reorder, and of a row of a tile


def _pooled(
    node: Node,
    pooling: Pooling,
    position_type: DType | None = None,
    backward: bool = False,
    counted_range: tuple[int, ...] = (),
) -> CudaKernel:
    """Return the kernel of a pooling, or of its gradient.

    position_type  type of the maxima's positions in windows; None for averages
    counted_range  begin and end of the rows, then of the columns, that averages count
    """
    result, operand = node.specs[0], node.inputs[0].spec
    (x, y), dtype = (result.shape, operand.shape)[:: 1 if backward else -1], result.dtype
    (h, w), lanes, planes, channels_last = x[2:4], math.prod(x[4:]), x[0] * x[1], len(x) == 5
    (top, _), (left, _) = pooling.padding
    neighbours = min(8, 16 // dtype.itemsize) if channels_last else PLANES_PER_THREAD
    (grid_h, grid_w), cell = y[2:4], (1, 1)
    reach: tuple[int, ...] = pooling.window
    if backward:
        reach = tuple(-(-k // t) for k, t in zip(reach, pooling.stride, strict=True))
        step = pooling.stride if channels_last else (pooling.stride[0], 1)
        if math.prod(step) <= MAX_CELL_PIXELS and math.prod(reach) <= MAX_CELL_PIXELS:
            cell = step
        grid_h, grid_w = -(-(h + top) // cell[0]), -(-(w + left) // cell[1])
    macros: dict[str, object] = {**element(dtype)}
    if math.prod(reach) <= MAX_PLAIN_SUM:
        macros["S"] = macros["W"]
    names = ("WINDOW_H", "WINDOW_W", "STRIDE_H", "STRIDE_W")
    macros |= zip(names, (*pooling.window, *pooling.stride), strict=True)
    macros |= zip(("CELL_H", "CELL_W", "REACH_H", "REACH_W"), (*cell, *reach), strict=True)
    operands = range(len(node.inputs) + len(node.specs))
    macros |= {
        "P": c_type(position_type) if position_type is not None else "",
        "LOWEST": limits(dtype)["lowest"],
        "IS_MAX": int(position_type is not None),
        "BACKWARD": int(backward),
        "V": neighbours,
        "LAST": int(channels_last),
        "ADDRESSES": f"({' | '.join(f'a.w[{i}]' for i in operands)})",
        "UNROLLED": reach[0] if math.prod(reach) <= MAX_UNROLLED else 1,
        "OUT": len(node.inputs),
    }
    sizes = (*x[2:4], *y[2:4], lanes, planes, top, left, *counted_range)
    groups = -(-lanes // neighbours) * planes if channels_last else -(-planes // neighbours)
    count, resident = groups * grid_h * grid_w, RESIDENT_BLOCKS * channels_last
    return handwritten_kernel(node, "pool2d", macros, count, sizes, resident=resident)


def avg_pool2d(op: AvgPool2d | AvgPool2dBackward, node: Node) -> CudaKernel | None:
    backward = isinstance(op, AvgPool2dBackward)
    pool = op.pool if isinstance(op, AvgPool2dBackward) else op
    pooling, (h, w) = pool.pooling, (node if backward else node.inputs[0]).shape[2:4]
    is_large = not backward and math.prod(pooling.window) > MAX_PLAIN_SUM
    if kind(node.dtype) != "f" or (is_large and not any(map(any, pooling.padding))):
        return None  # in the generated kernel, many threads share a large window
    counted_range = 0, h, 0, w
    if pool.count_padding:
        (top, bottom), (left, right) = pooling.padding
        p, q = pool.pad
        counted_range = -top, h + min(p, bottom), -left, w + min(q, right)
    return _pooled(node, pooling, backward=backward, counted_range=counted_range)


def laid_out(op: LaidOut, node: Node) -> CudaKernel | None:
    """Return the kernel of pooling if all images have the same layout, else None."""
    if len({*op.lanes_in, *op.lanes_out}) > 1 or type(op.plain) not in POOLINGS:
        return None
    return POOLINGS[type(op.plain)](op.plain, node)


def local_response_norm(op: LocalResponseNorm, node: Node) -> CudaKernel:
    channels, pixels = node.shape[1], math.prod(node.shape[2:])
    bits = struct.unpack("<3q", struct.pack("<3d", op.alpha / op.size, op.beta, op.k))
    sizes = (channels, pixels, op.size, *bits)
    macros = {**element(node.dtype), "POW": c_function("pow", node.dtype)}
    if op.size <= MAX_PLAIN_SUM:
        macros["S"] = macros["W"]
    return handwritten_kernel(node, "local_response_norm", macros, node.size, sizes)


def reorder(op: Reorder, node: Node) -> CudaKernel | None:
    """Return the matrix transposition that reorders contiguous images from or to nchw.

    None for other layouts, and if most of a tile would be empty.
    """
    (x,) = node.inputs
    if x.ndim == node.ndim:
        return None
    pixels, (lanes,) = math.prod(x.shape[2:4]), (*node.shape[4:], *x.shape[4:])
    rows, columns = (lanes, pixels) if x.ndim == 4 else (pixels, lanes)
    vector = VECTOR_BYTES // x.dtype.itemsize
    side = VECTORS_PER_ROW * vector
    if min(rows, columns) < side // 4:
        return None
    tiles = x.size // (rows * columns) * -(-rows // side) * -(-columns // side)
    element_type = f"uint{8 * x.dtype.itemsize}_t"
    macros = {"T": element_type, "SIDE": side, "VECTOR": vector, "ROW_VECTORS": VECTORS_PER_ROW}
    return handwritten_kernel(node, "reorder", macros, tiles, (rows, columns), THREADS)


POOLINGS: Kernels = {
    MaxPool2d: lambda op, node: _pooled(node, op.pooling, node.specs[1].dtype),
    MaxPool2dBackward: lambda op, node: _pooled(node, op.pooling, node.inputs[1].dtype, True),
    AvgPool2d: avg_pool2d,
    AvgPool2dBackward: avg_pool2d,
}
KERNELS: Kernels = {
    **POOLINGS,
    LaidOut: laid_out,
    LocalResponseNorm: local_response_norm,
    Reorder: reorder,
}

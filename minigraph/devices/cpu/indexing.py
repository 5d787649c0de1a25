"""Gathers, scatters and linear interpolation along an axis, in C.

Kernels that only move elements move them as unsigned integers of the same size.
"""

from __future__ import annotations

import math
from pathlib import Path

from minigraph.devices.cpu.kernel import KernelTable, NativeKernel, cache_bytes, call
from minigraph.graph import DType, Node, Shape, sizes_around
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.ops.elementwise import kind
from minigraph.ops.indexing import AddAlong, PutAlong, Take, TakeAlong, TakeBackward
from minigraph.ops.interpolation import Blend, BlendBackward
from minigraph.ops.reduction import FEW

TAKE, ALONG, BLEND = (
    Path(__file__).with_name(f"{name}.c").read_text() for name in ("take", "along", "blend")
)
GATHER, ADD, PUT = range(3)  # modes of along.c
TOTALS = {"float32": "double", "float64": "long double"}
RUN = 6  # consecutive indices for which it pays to copy runs
LINE = 64  # bytes of a cache line, which only one thread may write
SCRATCH = 1 << 16  # sums of a thread in scratch memory, at most


def take(op: Take, node: Node, threads: int) -> NativeKernel:
    x, indices = node.inputs
    text = _take_text(op, indices, bits(x.dtype), bits(x.dtype), 0)
    outer, n, columns = sizes_around(x.shape, op.axis)
    runs = indices.size // RUN if columns == 1 else 0
    stream = columns * x.dtype.itemsize % LINE == 0 and node.spec.nbytes > cache_bytes() // 2
    made = call(text, threads, outer, n, columns, indices.size, runs or int(stream), scratch=True)
    return NativeKernel(node, [made], 16 * runs, refuses=True)


def take_backward(op: TakeBackward, node: Node, threads: int) -> NativeKernel | None:
    dy, indices = node.inputs
    if kind(dy.dtype) == "b":
        return None
    outer, n, columns = sizes_around(op.shape, op.axis)
    count, held, wide = indices.size, c_type(dy.dtype), total_type(dy.dtype)
    few = count if wide == held else FEW
    text = _take_text(op, indices, held, wide, few, backward=True)
    values = threads, outer, n, columns, count, columns_for(threads, outer, columns, dy.dtype)
    room = 8 * (n + count) if count > few else 0
    return NativeKernel(node, [call(text, *values, scratch=True)], room, refuses=True)


def _take_text(
    op: Take | TakeBackward, indices: Node, held: str, wide: str, few: int, backward: bool = False
) -> str:
    types = {"T": held, "L": c_type(indices.dtype), **_totals(wide)}
    return with_macros(TAKE, **types, FEW=few, BACKWARD=int(backward), WRAPS=int(not op.tokens))


def take_along(op: TakeAlong, node: Node, threads: int) -> NativeKernel:
    x, indices = node.inputs
    text = _along_text(GATHER, bits(x.dtype), indices, wraps=not op.labels)
    values = threads, *sizes_around(x.shape, op.axis), indices.shape[op.axis], 0
    return NativeKernel(node, [call(text, *values)], refuses=True)


def add_along(op: AddAlong, node: Node, threads: int) -> NativeKernel | None:
    x, indices = node.inputs
    if kind(x.dtype) == "b":
        return None
    outer, count, columns = sizes_around(indices.shape, op.axis)
    held, wide, n = c_type(x.dtype), total_type(x.dtype), node.shape[op.axis]
    apart = count > FEW and wide != held
    block = columns_for(threads, outer, columns, node.dtype)
    room = 0
    if apart:
        block = min(block, max(SCRATCH // n, LINE // node.dtype.itemsize))
        room = threads * n * block * 2 * node.dtype.itemsize
    text = _along_text(ADD, held, indices, wide, apart, not op.labels)
    made = call(text, threads, outer, n, columns, count, block, scratch=apart)
    return NativeKernel(node, [made], room, refuses=True)


def put_along(op: PutAlong, node: Node, threads: int) -> NativeKernel:
    x, indices, _ = node.inputs
    outer, count, columns = sizes_around(indices.shape, op.axis)
    block = columns_for(threads, outer, columns, node.dtype)
    text = _along_text(PUT, bits(x.dtype), indices)
    made = call(text, threads, outer, node.shape[op.axis], columns, count, block)
    return NativeKernel(node, [made], inplace=((0,), (), ()), refuses=True)


def _along_text(
    mode: int, held: str, indices: Node, wide: str = "", apart: bool = False, wraps: bool = True
) -> str:
    types = {"T": held, "L": c_type(indices.dtype), **_totals(wide if apart else held)}
    return with_macros(ALONG, **types, MODE=mode, IN_SCRATCH=int(apart), WRAPS=int(wraps))


def _totals(wide: str) -> dict[str, object]:
    """Return the macros of sums: a sum wider than double is a pair of doubles, in vectors."""
    pairs = wide == TOTALS["float64"]
    return {"W": "double" if pairs else wide, "PAIRS": int(pairs)}


def blend(op: Blend, node: Node, threads: int) -> NativeKernel | None:
    return _blend(node, node.inputs[0].shape, op.axis, threads, 0)


def blend_backward(op: BlendBackward, node: Node, threads: int) -> NativeKernel | None:
    return _blend(node, node.shape, op.axis, threads, 1)


def _blend(node: Node, x: Shape, axis: int, threads: int, backward: int) -> NativeKernel | None:
    """Return the kernel for an input, or a gradient for it, of shape `x`."""
    if node.inputs[3].dtype != node.dtype:
        return None
    outer, n, columns = sizes_around(x, axis)
    count, held = node.inputs[3].size, c_type(node.dtype)
    # A place contributes to the results of two steps, at an edge of two and a half.
    apart = bool(backward) and 3 * count > FEW * n
    wide = total_type(node.dtype) if apart else held
    text = with_macros(BLEND, T=held, W=wide, BACKWARD=backward, IN_SCRATCH=int(apart))
    block = columns_for(threads, outer, columns, node.dtype)
    values = threads, outer, n, columns, count, block
    room = threads * n * block * 2 * node.dtype.itemsize if apart else 0
    return NativeKernel(node, [call(text, *values, scratch=apart)], room, refuses=True)


def bits(dtype: DType) -> str:
    """Return the C type as which elements are moved."""
    return f"uint{8 * dtype.itemsize}_t"


def place_type(dtype: DType) -> str:
    """Return the C type of a place: as wide as the elements, so that their vectors match."""
    return "int64_t" if dtype.itemsize == 8 else "int32_t"


def total_type(dtype: DType) -> str:
    """Return the C type of long sums, whose error would be too large in the elements' type."""
    return TOTALS.get(dtype.name, c_type(dtype))


def columns_for(threads: int, outer: int, columns: int, dtype: DType) -> int:
    """Return the number of columns of a thread, of `outer` times `columns` columns."""
    least = max(LINE // dtype.itemsize, 1)
    return math.ceil(columns / math.ceil(threads / outer) / least) * least


KERNELS: KernelTable = {
    Take: take,
    TakeBackward: take_backward,
    TakeAlong: take_along,
    AddAlong: add_along,
    PutAlong: put_along,
    Blend: blend,
    BlendBackward: blend_backward,
}

"""Gathers, scatters and linear interpolation along an axis, in C.

Kernels that only move elements move them as unsigned integers of the same size.
"""

from __future__ import annotations

import math
from pathlib import Path

from minigraph.devices.cpu.kernel import KernelTable, NativeKernel, cache_bytes, call
from minigraph.graph import DType, Node, sizes_around
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.jit.small_float import SMALL_FLOATS, conversions
from minigraph.jit.source import KernelSource
from minigraph.ops.elementwise import kind
from minigraph.ops.indexing import AddAlong, PutAlong, Take, TakeAlong, TakeBackward
from minigraph.ops.interpolation import Blend, BlendBackward
from minigraph.ops.reduction import MAX_PLAIN_SUM

TAKE_TEXT, ALONG_TEXT, BLEND_TEXT = (
    Path(__file__).with_name(f"{name}.c").read_text() for name in ("take", "along", "blend")
)
GATHER, ADD, ADD_TO, PUT = range(4)  # modes of along.c
START_INPLACE = (), (), (0,)  # the result may overwrite the third input, to which it adds
ACCUMULATOR_TYPES = {"float32": "double", "float64": "long double"}
MIN_SMALL_COLUMNS = 16  # columns from which on 16-bit floats are summed without float32 copies
MIN_RUN_LENGTH = 6  # consecutive indices for which it pays to copy runs
CACHE_LINE = 64  # bytes of a cache line, which only one thread may write
MAX_SCRATCH_SUMS = 1 << 16  # largest number of sums of a thread in scratch memory


def take(op: Take, node: Node, threads: int) -> NativeKernel:
    x, indices = node.inputs
    text = _take_text(op, indices, BACKWARD=0, T=bits_type(x.dtype))
    outer, n, columns = sizes_around(x.shape, op.axis)
    runs = indices.size // MIN_RUN_LENGTH if columns == 1 else 0
    stream = columns * x.dtype.itemsize % CACHE_LINE == 0 and node.spec.nbytes > cache_bytes() // 2
    kernel_call = call(
        text, threads, outer, n, columns, indices.size, runs or int(stream), scratch=True
    )
    return NativeKernel(node, [kernel_call], 16 * runs, validates_input=True)


def take_backward(op: TakeBackward, node: Node, threads: int) -> NativeKernel | None:
    dy, indices, *x = node.inputs
    outer, n, columns = sizes_around(op.shape, op.axis)
    small = dy.dtype in SMALL_FLOATS
    if kind(dy.dtype) == "b" or (small and columns < MIN_SMALL_COLUMNS):
        return None
    count, element, accumulator = indices.size, c_type(dy.dtype), accumulator_type(dy.dtype)
    macros: dict[str, object] = {"T": element, "LOAD(x)": "(x)", "STORE(x)": "(x)"}
    support: tuple[str, ...] = ()
    max_direct = count if accumulator == element else MAX_PLAIN_SUM
    if small:  # even one addition may round
        load, store, support = conversions(dy.dtype)
        macros = {"T": bits_type(dy.dtype), "LOAD(x)": f"{load}(x)", "STORE(x)": f"{store}(x)"}
        accumulator, max_direct = "double", 1
    macros |= {**_accumulator_macros(accumulator), "MAX_DIRECT": max_direct}
    text = KernelSource(_take_text(op, indices, BACKWARD=1 + len(x), **macros), support)
    values = (
        threads,
        outer,
        n,
        columns,
        count,
        columns_per_thread(threads, outer, columns, dy.dtype),
    )
    scratch = 8 * (n + count) if count > max_direct else 0
    kernel_call = call(text, *values, scratch=True)
    return NativeKernel(node, [kernel_call], scratch, inplace=START_INPLACE, validates_input=True)


def _take_text(op: Take | TakeBackward, indices: Node, **macros: object) -> str:
    return with_macros(TAKE_TEXT, L=c_type(indices.dtype), WRAPS=int(not op.tokens), **macros)


def take_along(op: TakeAlong, node: Node, threads: int) -> NativeKernel:
    x, indices = node.inputs
    text = _along_text(GATHER, bits_type(x.dtype), indices, wraps=not op.labels)
    values = threads, *sizes_around(x.shape, op.axis), indices.shape[op.axis], 0
    return NativeKernel(node, [call(text, *values)], validates_input=True)


def add_along(op: AddAlong, node: Node, threads: int) -> NativeKernel | None:
    v, indices, *x = node.inputs
    if kind(v.dtype) == "b":
        return None
    outer, count, columns = sizes_around(indices.shape, op.axis)
    element, accumulator, n = c_type(v.dtype), accumulator_type(v.dtype), node.shape[op.axis]
    separate = count > MAX_PLAIN_SUM and accumulator != element
    block = columns_per_thread(threads, outer, columns, node.dtype)
    scratch = 0
    if separate:
        block = min(block, max(MAX_SCRATCH_SUMS // n, CACHE_LINE // node.dtype.itemsize))
        scratch = threads * n * block * 2 * node.dtype.itemsize
    mode = ADD_TO if x else ADD
    text = _along_text(mode, element, indices, accumulator, separate, not op.labels)
    kernel_call = call(text, threads, outer, n, columns, count, block, scratch=separate)
    return NativeKernel(node, [kernel_call], scratch, inplace=START_INPLACE, validates_input=True)


def put_along(op: PutAlong, node: Node, threads: int) -> NativeKernel:
    x, indices, _ = node.inputs
    outer, count, columns = sizes_around(indices.shape, op.axis)
    block = columns_per_thread(threads, outer, columns, node.dtype)
    text = _along_text(PUT, bits_type(x.dtype), indices)
    kernel_call = call(text, threads, outer, node.shape[op.axis], columns, count, block)
    return NativeKernel(node, [kernel_call], inplace=((0,), (), ()), validates_input=True)


def _along_text(
    mode: int,
    element: str,
    indices: Node,
    accumulator: str = "",
    separate: bool = False,
    wraps: bool = True,
) -> str:
    types = {
        "T": element,
        "L": c_type(indices.dtype),
        **_accumulator_macros(accumulator if separate else element),
    }
    return with_macros(ALONG_TEXT, **types, MODE=mode, IN_SCRATCH=int(separate), WRAPS=int(wraps))


def _accumulator_macros(accumulator: str) -> dict[str, object]:
    """Return the macros of sums: a sum wider than double is a pair of doubles, in vectors."""
    pairs = accumulator == ACCUMULATOR_TYPES["float64"]
    return {"W": "double" if pairs else accumulator, "PAIRS": int(pairs)}


def blend(op: Blend | BlendBackward, node: Node, threads: int) -> NativeKernel | None:
    if node.inputs[3].dtype != node.dtype:
        return None
    backward = isinstance(op, BlendBackward)
    outer, n, columns = sizes_around((node if backward else node.inputs[0]).shape, op.axis)
    count, element = node.inputs[3].size, c_type(node.dtype)
    # An element contributes to the results of two steps; at an edge, to those of two and a half.
    separate = backward and 3 * count > MAX_PLAIN_SUM * n
    accumulator = accumulator_type(node.dtype) if separate else element
    macros = {"T": element, "W": accumulator, "BACKWARD": int(backward)}
    macros["IN_SCRATCH"] = int(separate)
    text = with_macros(BLEND_TEXT, **macros)
    block = columns_per_thread(threads, outer, columns, node.dtype)
    values = threads, outer, n, columns, count, block
    scratch = threads * n * block * 2 * node.dtype.itemsize if separate else 0
    return NativeKernel(
        node, [call(text, *values, scratch=separate)], scratch, validates_input=True
    )


def bits_type(dtype: DType) -> str:
    """Return the C type of an element's bits."""
    return f"uint{8 * dtype.itemsize}_t"


def index_type(dtype: DType) -> str:
    """Return the C type of an index: as wide as the elements, so that their vectors match."""
    return "int64_t" if dtype.itemsize == 8 else "int32_t"


def accumulator_type(dtype: DType) -> str:
    """Return the C type of long sums, whose error would be too large in the elements' type."""
    return ACCUMULATOR_TYPES.get(dtype.name, c_type(dtype))


def columns_per_thread(threads: int, outer: int, columns: int, dtype: DType) -> int:
    """Return the number of columns of each thread, given `outer` times `columns` columns."""
    multiple = max(CACHE_LINE // dtype.itemsize, 1)
    return math.ceil(columns / math.ceil(threads / outer) / multiple) * multiple


KERNELS: KernelTable = {
    Take: take,
    TakeBackward: take_backward,
    TakeAlong: take_along,
    AddAlong: add_along,
    PutAlong: put_along,
    Blend: blend,
    BlendBackward: blend,
}

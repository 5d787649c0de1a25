"""Kernels whose CUDA text is written by hand, for ops that are no expression of elements.

Inputs and outputs are contiguous.  The words of a kernel are the addresses of its inputs and of its
outputs, then sizes.  Floats of 16 bits are widened where they are loaded and rounded where they are
stored; in between everything is float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minigraph.devices.cuda.kernel import CudaKernel, Launch
from minigraph.graph import BOOL, DType, Node, Op
from minigraph.jit.expression import c_type
from minigraph.jit.small_float import SMALL_FLOATS, conversion, working
from minigraph.jit.source import KernelSource
from minigraph.ops.elementwise import kind

WARP, THREADS, MOST_THREADS = 32, 256, 1024
MOST_BLOCKS = 1 << 16  # a block that is done goes on with what lies a whole grid further
NARROW = 1 << 31  # elements up to which indices have 32 bits
SHORT_ROW, LONG_ROW = 16, 1024  # elements up to which a thread, or a warp, does a row

Kernels = dict[type[Op], Callable[..., CudaKernel | None]]

# A thread does one element after the other.
EACH_ELEMENT = """
extern "C" __global__ void __launch_bounds__(%(bounds)s) NAME(const __grid_constant__ NAME_args a) {
  const %(I)s count = a.w[%(sizes)d], step = gridDim.x * (%(I)s)blockDim.x;
  for (%(I)s e = blockIdx.x * (%(I)s)blockDim.x + threadIdx.x; e < count; e += step) {"""

# Threads along x share one row after the other: one of them, a warp, or the whole block.
EACH_ROW = """
extern "C" __global__ void __launch_bounds__(%(block)d) NAME(const __grid_constant__ NAME_args a) {
  const int64_t rows = a.w[%(sizes)d], step = (int64_t)gridDim.x * blockDim.y;
  for (int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += step) {"""

END = "  }\n}\n"


def threads_for(length: int) -> int:
    """Return how many threads should share a row: one, a warp, or a whole block."""
    return 1 if length <= SHORT_ROW else WARP if length <= LONG_ROW else THREADS


def written_kernel(
    node: Node,
    text: str,
    fill: Mapping[str, object],
    count: int,
    sizes: Sequence[int],
    threads: int = 0,
    functions: str = "",
    resident: int = 0,
    **facts: Any,
) -> CudaKernel:
    """Return a kernel that does `count` elements, or rows.

    fill       what the texts leave open
    sizes      the words after the count
    threads    that do a row together; 0: a thread does one element after the other
    functions  that the text calls
    resident   blocks that a multiprocessor should hold, which limits a thread's registers
    facts      as `CudaKernel` takes them
    """
    together = max(1, THREADS // threads) if threads else THREADS  # rows, or elements, of a block
    block = (threads or THREADS, together if threads else 1, 1)
    body = functions + (EACH_ROW if threads else EACH_ELEMENT) + text + END
    # Dividing 64-bit numbers takes several times as long.
    largest = max(s.size for s in (*(x.spec for x in node.inputs), *node.specs))
    first = len(node.inputs) + len(node.specs) + ("%(flag)d" in body)
    common = {
        "I": "uint32_t" if largest < NARROW else "uint64_t",
        "block": math.prod(block),
        "bounds": f"{THREADS}, {resident}" if resident else THREADS,
        "lanes": min(threads, WARP),
        "warps": -(-threads // WARP),
        "sizes": first,
        "flag": first - 1,
    }
    words = (count, *sizes)
    head = f"struct NAME_args {{ int64_t w[{first + len(words)}]; }};"
    source = KernelSource(head + body % {**fill, **common})
    grid = (max(1, min(-(-count // together), MOST_BLOCKS)), 1, 1)
    launch = Launch(source, grid, block, lambda x, y, scratch: [*x, *y, *words])
    return CudaKernel(node, [launch], **facts)


def element(dtype: DType) -> dict[str, str]:
    """Return what texts call the type of an element, and how they load and store one.

    T is the type in memory, W the type for computing, S the type of long sums.
    """
    wide = working(dtype)
    small = dtype in SMALL_FLOATS
    load = "(bool)" if dtype == BOOL else ""  # any byte but 0 is true
    return {
        "T": c_type(dtype),
        "W": c_type(wide),
        "S": "double" if kind(dtype) == "f" else c_type(wide),
        "f": "f" if wide.itemsize == 4 else "",
        "load": conversion(dtype, wide)[0] if small else load,
        "store": conversion(wide, dtype)[0] if small else "",
    }

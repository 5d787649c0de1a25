"""Kernels whose CUDA text is written by hand, for ops that are no expression of elements.

Inputs and outputs are contiguous.  The words of a kernel are the addresses of its inputs and of its
outputs, then sizes.  Floats of 16 bits are widened where they are loaded and rounded where they are
stored; in between everything is float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from minigraph.devices.cuda.kernel import CudaKernel, Dim3, Launch, Range
from minigraph.graph import BOOL, DType, Node, Op, Shape
from minigraph.jit.expression import c_type
from minigraph.jit.small_float import SMALL_FLOATS, conversion, working
from minigraph.jit.source import KernelSource
from minigraph.ops.elementwise import kind

WARP, THREADS, MOST_THREADS = 32, 256, 1024
MOST_BLOCKS = 1 << 16  # a block that is done goes on with what lies a whole grid further
NARROW = 1 << 31  # elements up to which indices have 32 bits
SHORT_ROW, LONG_ROW = 16, 1024  # elements up to which a thread, or a warp, does a row


Inplace = Sequence[Sequence[int]]
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


def each_element(
    node: Node,
    text: str,
    fill: Mapping[str, object],
    count: int,
    sizes: Sequence[int],
    functions: str = "",
    resident: int = 0,
    range: Range | None = None,
    inplace: Inplace = (),
    alignment: int = 1,
) -> CudaKernel:
    """Return a kernel that does `count` elements.

    fill       what the texts leave open
    sizes      the words after the count
    functions  that the text calls
    resident   blocks that a multiprocessor should hold, which limits a thread's registers
    """
    bounds = f"{THREADS}, {resident}" if resident else THREADS
    whole, block = functions + EACH_ELEMENT + text + END, (THREADS, 1, 1)
    fill = {**fill, "bounds": bounds}
    launch = _launch(node, whole, fill, (count, *sizes), -(-count // THREADS), block)
    return CudaKernel(node, [launch], inplace=inplace, range=range, alignment=alignment)


def threads_for(length: int) -> int:
    """Return how many threads should share a row: one, a warp, or a whole block."""
    return 1 if length <= SHORT_ROW else WARP if length <= LONG_ROW else THREADS


def each_row(
    node: Node,
    text: str,
    fill: Mapping[str, object],
    rows: int,
    threads: int,
    sizes: Sequence[int],
    functions: str = "",
    range: Range | None = None,
    inplace: Inplace = (),
) -> CudaKernel:
    """Return a kernel that does `rows` rows, each by so many threads."""
    fill = {**fill, "lanes": min(threads, WARP), "warps": -(-threads // WARP)}
    together = THREADS // threads if threads <= WARP else 1
    whole, block = functions + EACH_ROW + text + END, (threads, together, 1)
    launch = _launch(node, whole, fill, (rows, *sizes), -(-rows // together), block)
    return CudaKernel(node, [launch], inplace=inplace, range=range)


def _launch(
    node: Node, text: str, fill: Mapping[str, object], sizes: Shape, blocks: int, block: Dim3
) -> Launch:
    """Return the launch of a text; its operands are the node's, and the flag if it names one."""
    # Dividing 64-bit numbers takes several times as long.
    largest = max(s.size for s in (*(x.spec for x in node.inputs), *node.specs))
    index = "uint32_t" if largest < NARROW else "uint64_t"
    first = len(node.inputs) + len(node.specs) + ("%(flag)d" in text)
    head = f"struct NAME_args {{ int64_t w[{first + len(sizes)}]; }};"
    common = {"I": index, "block": math.prod(block), "sizes": first, "flag": first - 1}
    body = head + text % {**fill, **common}
    grid = (max(1, min(blocks, MOST_BLOCKS)), 1, 1)
    return Launch(KernelSource(body), grid, block, lambda x, y, scratch: [*x, *y, *sizes])


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

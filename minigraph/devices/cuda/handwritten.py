"""Handwritten CUDA kernels, for ops that are not elementwise expressions or reductions.

A source is a file such as `one_hot.cu`, whose first lines list its macros.  Inputs and outputs are
contiguous.  A kernel's words are the addresses of its inputs and outputs and, from SIZES on, the
number of elements or rows and other sizes.  16-bit floats are widened to float32 when they are
loaded, and rounded when they are stored.

Each source also has these macros: KERNEL, EACH_ELEMENT or EACH_ROW, with which it begins; I, the
type of an index; BLOCK, the threads of a block; LANES and WARPS, those of a row; and FLAG, the word
with the address of the flag for an integer out of range.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minigraph.devices.cuda.kernel import CudaKernel, Launch
from minigraph.graph import BOOL, DType, Node, Op
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.jit.small_float import SMALL_FLOATS, compute_dtype, conversion
from minigraph.jit.source import KernelSource
from minigraph.ops.elementwise import kind

WARP, THREADS, MAX_THREADS = 32, 256, 1024
MAX_BLOCKS = 1 << 16  # blocks of a launch; each loops with the stride of the grid
MAX_32_BIT_INDEX = 1 << 31  # elements below which indices have 32 bits
SHORT_ROW, LONG_ROW = 16, 1024  # elements of a row, at most, that one thread, or warp, computes

Kernels = dict[type[Op], Callable[..., CudaKernel | None]]

# Macros for the head of a kernel, and for its loop: over the elements of a thread, or over the rows
# that the threads along x share: one thread, a warp, or the whole block.
LAUNCH_MACROS = {
    "KERNEL": 'extern "C" __global__ void __launch_bounds__(BOUNDS) '
    "NAME(const __grid_constant__ NAME_args a)",
    "EACH_ELEMENT": "const I count = a.w[SIZES], step = gridDim.x * (I)blockDim.x; "
    "for (I e = blockIdx.x * (I)blockDim.x + threadIdx.x; e < count; e += step)",
    "EACH_ROW": "const int64_t rows = a.w[SIZES], step = (int64_t)gridDim.x * blockDim.y; "
    "for (int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += step)",
}


def threads_for(length: int) -> int:
    """Return how many threads should share a row: one, a warp, or a whole block."""
    return 1 if length <= SHORT_ROW else WARP if length <= LONG_ROW else THREADS


def handwritten_kernel(
    node: Node,
    name: str,
    macros: Mapping[str, object],
    count: int,
    sizes: Sequence[int],
    threads: int = 0,
    resident: int = 0,
    **fields: Any,
) -> CudaKernel:
    """Return the kernel in the file of this name for `count` elements or rows.

    macros    of the source, besides those that follow from the other arguments
    sizes     words after the count
    threads   of a row; 0: each thread computes one element after the other
    resident  blocks of a multiprocessor, which limit a thread's registers
    fields    other fields of `CudaKernel`
    """
    per_block = max(1, THREADS // threads) if threads else THREADS  # rows, or elements, of a block
    block = (threads or THREADS, per_block if threads else 1, 1)
    largest = max(s.size for s in (*(x.spec for x in node.inputs), *node.specs))
    range = node.op.index_range(*node.inputs)
    flag = len(node.inputs) + len(node.specs)
    sizes_word = flag + (range is not None)
    words = (count, *sizes)
    text = with_macros(
        f"struct NAME_args {{ int64_t w[{sizes_word + len(words)}]; }};\n{text_of(name)}",
        **macros,
        **LAUNCH_MACROS,
        I=index_type(largest),
        BLOCK=math.prod(block),
        BOUNDS=f"{math.prod(block)}, {resident}" if resident else math.prod(block),
        LANES=min(threads, WARP),
        WARPS=-(-threads // WARP),
        SIZES=sizes_word,
        FLAG=flag,
    )
    grid = (max(1, min(-(-count // per_block), MAX_BLOCKS)), 1, 1)
    launch = Launch(KernelSource(text), grid, block, lambda x, y, scratch: [*x, *y, *words])
    return CudaKernel(node, [launch], range=range, **fields)


def index_type(elements: int) -> str:
    """Return the C type of indices: dividing those of 64 bits takes several times as long."""
    return "uint32_t" if elements < MAX_32_BIT_INDEX else "uint64_t"


@functools.cache
def text_of(name: str) -> str:
    """Return the CUDA text in the file of this name."""
    return Path(__file__).with_name(f"{name}.cu").read_text()


def element(dtype: DType) -> dict[str, str]:
    """Return the macros for the type of an element, and for loading and storing one.

    T is the type in memory, W the type for computing, S the type of long sums.
    """
    compute = compute_dtype(dtype)
    is_small = dtype in SMALL_FLOATS
    load = "(bool)" if dtype == BOOL else ""  # any byte but 0 is true
    return {
        "T": c_type(dtype),
        "W": c_type(compute),
        "S": "double" if kind(dtype) == "f" else c_type(compute),
        "LOAD": conversion(dtype, compute)[0] if is_small else load,
        "STORE": conversion(compute, dtype)[0] if is_small else "",
    }


def c_function(name: str, dtype: DType) -> str:
    """Return the C function of this name for the type in which `dtype` is computed."""
    return f"{name}f" if compute_dtype(dtype).itemsize == 4 else name

"""Products of a matrix and few rows, which memory bounds: little is computed with each element.

few rows         times a matrix that lies transposed, as layers hold their weights, in C; oneDNN's
                 kernels come near the bound for up to three rows
sum of products  of a matrix and a vector, along rows or columns, as generated kernels; oneDNN's
                 bring the matrix into their own order first, as they would for a second vector
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from minigraph.autotune.candidate import Candidate
from minigraph.devices.cpu import compiler, onednn
from minigraph.devices.cpu.kernel import KernelCall, NativeKernel, Place, cache_bytes
from minigraph.devices.cpu.kernels import native_kernel, sum_of_products
from minigraph.devices.cpu.onednn import F32
from minigraph.devices.problem import MATRIX, TRANSPOSED, Arrangement
from minigraph.graph import Node, Shape
from minigraph.jit.emitter import block, function
from minigraph.jit.macros import with_macros
from minigraph.jit.source import KernelSource
from minigraph.ops.matmul import Matmul

TEXT = Path(__file__).with_suffix(".c").read_text()
FEW_ROWS, VECTOR = "few rows", "sum of products"  # the algorithms
MOST = 12  # rows
REGISTERS = {8: 16, 16: 32}  # by the floats of a vector
WIDEST = 8  # rows of weights that are read at a time
STRETCH = 256  # vectors of a row that are added up one after the other
AHEAD = 1024  # floats before it is used a row is fetched: a page of 4 KiB


def candidates(arrangement: Arrangement, threads: int) -> Iterator[Candidate]:
    """Yield the algorithm for few rows if the weights come from memory, and that for a vector.

    Where they stay in the last cache, which those of other layers want too, one of oneDNN's kernels
    is as fast or faster.
    """
    node, strides, layouts = arrangement
    if not (isinstance(node.op, Matmul) and node.dtype == F32 and compiler.compiler()):
        return
    few = node.ndim == 2 and node.shape[0] <= MOST and layouts[:2] == (MATRIX, TRANSPOSED)
    if few and node.inputs[1].spec.nbytes > cache_bytes() // 4:
        yield Candidate(FEW_ROWS, layouts, functools.partial(few_rows, node, threads))
    if 1 in node.shape[-2:]:
        yield Candidate(VECTOR, layouts, functools.partial(vector_product, node, strides, threads))


def few_rows(node: Node, threads: int) -> NativeKernel:
    """Return the kernel of a product [m, k] times [k, n], with a bias [n] or without."""
    (m, n), (_, length) = node.shape, node.inputs[0].shape
    has_bias, lanes = len(node.inputs) == 3, onednn.block()

    def words(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        places = (*ins[:2], ins[-1], *outs, scratch)
        return [threads, n, length, has_bias, *(v for place in places for v in place)]

    scratch = m * math.ceil(length / lanes) * lanes * F32.itemsize
    strided = [i == 1 for i, _ in enumerate(node.inputs)]
    kernel = NativeKernel(
        node, [KernelCall(_text(m, lanes), words)], scratch, strided, algorithm=FEW_ROWS
    )
    kernel.threads = threads
    return kernel


@functools.cache
def _text(rows: int, lanes: int) -> KernelSource:
    # Their vectors, and the sums of each with each row of x, fit the registers with one to spare.
    group = min((REGISTERS[lanes] - 1) // (rows + 1), WIDEST)
    macros = {"L": lanes, "M": rows, "G": group, "vec": "NAME_vec"}
    macros |= {"AHEAD": AHEAD, "STRETCH": STRETCH * lanes}
    return KernelSource(with_macros(TEXT.replace("DOTS", _dots(rows, group)), **macros))


def _dots(rows: int, group: int) -> str:
    """Return the function that multiplies a group of rows of w, of which `count` exist."""
    pairs = list(itertools.product(range(rows), range(group)))
    added = [
        *(f"const vec w{g} = NAME_load(row{g}, at, length);" for g in range(group)),
        *(f"s{i}_{g} += beside[{i}] * w{g};" for i, g in pairs),
    ]
    return function(
        "MG_FAST void NAME_dots(\n"
        "    const float *w, int64_t count, int64_t length, const vec *beside, vec *sums)",
        [
            "const float *row0 = w;",
            *(
                f"const float *row{g} = count > {g} ? w + {g} * length : w;"
                for g in range(1, group)
            ),
            f"for (int64_t k = 0; k < {len(pairs)}; k++) sums[k] = (vec){{0}};",
            *block(
                "for (int64_t at = 0; at < length;)",
                "const int64_t end = length - at > STRETCH ? at + STRETCH : length;",
                *(f"vec s{i}_{g} = {{0}};" for i, g in pairs),
                *block(
                    "for (; at + L <= end; at += L, beside += M)",
                    *(f"__builtin_prefetch(row{g} + at + AHEAD, 0, 2);" for g in range(group)),
                    *added,
                ),
                *block("if (at < end)", *added, "at = end;"),
                *(f"sums[{i * group + g}] += s{i}_{g};" for i, g in pairs),
            ),
        ],
    )


def vector_product(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel:
    """Return the kernel of a product [..., m, k] times [..., k, n], m or n 1, plus any bias [n]."""
    kernel = native_kernel(sum_of_products(node), strides, threads)
    assert kernel is not None
    kernel.algorithm = VECTOR
    return kernel

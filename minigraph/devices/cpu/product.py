"""Products of matrices in C: in registers, and with an elementwise kernel that takes them by tiles.

A tile of the product has a few rows.  Its columns of the second operand are brought side by side
and stay in the second cache while all tiles below are computed.  As soon as a tile is computed, the
text of the elementwise kernel runs on it, with an argument block whose extents are the tile's.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from minigraph.devices.cpu import onednn
from minigraph.devices.cpu.kernel import KernelCall, NativeKernel, Place
from minigraph.devices.cpu.onednn import F32
from minigraph.graph import Node, Shape
from minigraph.jit.c.rows import unit_text
from minigraph.jit.c.source import functions_of
from minigraph.jit.emitter import block, function
from minigraph.jit.macros import with_macros
from minigraph.jit.pattern import KernelPattern
from minigraph.jit.product import FusedProduct, specialise_tiles
from minigraph.jit.source import KernelSource

TEXT = Path(__file__).with_name("product.c").read_text()
ROWS = {8: 6, 16: 12}  # of a tile, by the floats of a vector: so many sums fit the registers
VECTORS = 2  # of a row that are computed at once
PANEL = 64 << 10  # floats of the second operand that stay in the second cache
CHUNK = 16  # tiles whose rows are brought side by side at once
WIDEST = 2048  # columns of a tile, at most


def sums(rows: int, vectors: int) -> list[tuple[int, int]]:
    """Return the sums s{r}_{j} that a product keeps in registers."""
    return list(itertools.product(range(rows), range(vectors)))


def pinned(vectors: int) -> list[str]:
    """Return statements that pin f0, f1 and so on in registers; gcc would load them each time."""
    each = [f'__asm__("" : "+x"(f{j}));' for j in range(vectors)]
    return ["#if L * 4 <= MG_REGISTER", *each, "#endif"]


def outer_products(rows: int, vectors: int) -> str:
    """Return the function NAME_products: the sums over t of v[t], lane r, times d[j * room + t].

    They go to g[r * gap + j], or are added to what is there already.
    """
    all_sums = sums(rows, vectors)
    return function(
        "MG_FAST void NAME_products(\n"
        "    int64_t count, int64_t room, const vec *v, const vec *d, vec *g, int64_t gap,\n"
        "    int begun)",
        [
            *(f"vec s{r}_{j} = {{0}};" for r, j in all_sums),
            *block(
                "for (int64_t t = 0; t < count; t++, d++)",
                "const float *x = (const float *)(v + t);",
                *(f"vec f{j} = d[{j} * room];" for j in range(vectors)),
                *pinned(vectors),
                *(f"s{r}_{j} += x[{r}] * f{j};" for r, j in all_sums),
            ),
            *block("if (begun)", *(f"s{r}_{j} += g[{r} * gap + {j}];" for r, j in all_sums)),
            *(f"g[{r} * gap + {j}] = s{r}_{j};" for r, j in all_sums),
        ],
    )


def fused_product(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel:
    """Return the kernel of a product and what elementwise ops make of it.

    Its operands may be views of any strides; what the others read is contiguous.
    """
    op = node.op
    assert isinstance(op, FusedProduct)
    (m, n), (_, count) = op.product.shape, node.inputs[0].shape
    lanes = onednn.block()
    wide = _width(n, count, lanes)
    pitch = (wide + lanes) * F32.itemsize
    kernel = specialise_tiles(op.then, pitch)
    rows = ROWS[lanes]
    share = wide // lanes * count + rows * (wide // lanes + 1)
    scratch = (math.ceil(m / rows) * count + threads * share) * lanes * F32.itemsize
    steps = [step // F32.itemsize for each in strides[:2] for step in each]

    def words(ins: Sequence[Place], outs: Sequence[Place], memory: Place) -> list[int]:
        x, y = ins[:2]
        head = [threads, m, n, count, wide, *x, *steps[:2], *y, *steps[2:], *memory, share]
        return [*head, *kernel.block(1, [memory, *ins[2:], *outs], memory, stream=False)]

    source = _text(kernel.pattern, lanes)
    inplace = [(), (), *kernel.inplace[1:]]
    strided = (True, True, *(False for _ in node.inputs[2:]))
    return NativeKernel(node, [KernelCall(source, words)], scratch, strided, inplace)


def _width(columns: int, count: int, lanes: int) -> int:
    """Return how many columns a tile has, in whole groups of those that are computed at once."""
    group = VECTORS * lanes
    wide = max(min(PANEL // count, WIDEST, columns + group - 1) // group, 1) * group
    # Rows of a tile are not to follow each other as those of the operands do: axes would merge.
    return wide + group if wide + lanes == columns else wide


@functools.lru_cache(4096)
def _text(pattern: KernelPattern, lanes: int) -> KernelSource:
    """Return the text of the product and the elementwise kernel that takes its tiles."""
    count = len(pattern.dtypes)
    constants = 1 + max((value.constant for value in pattern.values), default=-1)
    fetched = [k for k in range(1, pattern.inputs) if pattern.accesses[k] == "unit"]
    fetches = (
        f"NAME_fetch(operand + {5 * k}, slots, rows, c * {size}, {VECTORS * lanes * size});"
        for k, size in ((k, pattern.dtypes[k].itemsize) for k in fetched)
    )
    text = with_macros(
        TEXT.replace("PRODUCTS", outer_products(ROWS[lanes], VECTORS)),
        L=lanes,
        R=ROWS[lanes],
        NV=VECTORS,
        CHUNK=CHUNK,
        COUNT=count,
        WORDS=10 + 5 * count + constants,
        FETCH=" ".join(fetches),
        vec="NAME_vec",
    )
    return KernelSource(f"{unit_text(pattern)}\n{text}", functions_of(pattern))

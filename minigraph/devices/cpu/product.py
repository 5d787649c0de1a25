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

import numpy as np

from minigraph.devices.cpu import onednn
from minigraph.devices.cpu.kernel import KernelCall, NativeKernel, Place, TogetherKernel
from minigraph.devices.cpu.onednn import F32
from minigraph.graph import Array, Node, Shape
from minigraph.jit.c.rows import unit_text
from minigraph.jit.c.source import functions_of
from minigraph.jit.emitter import block, function
from minigraph.jit.macros import with_macros
from minigraph.jit.pattern import KernelPattern
from minigraph.jit.product import FusedProduct, specialise_tiles
from minigraph.jit.source import KernelSource
from minigraph.program import round_up

TEXT = Path(__file__).with_name("product.c").read_text()
ROWS = {8: 6, 16: 12}  # of a tile, by the floats of a vector: so many sums fit the registers
VECTORS = 2  # of a row that are computed at once
PANEL = 64 << 10  # floats of the second operand that stay in the second cache
CHUNK = 16  # tiles whose rows are brought side by side at once
WIDEST = 2048  # columns of a tile, at most
STRETCH = 4096  # products that are added up one after the other
MOST_PRODUCTS = 4096  # of a batch


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


def plain_product(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel | None:
    """Return the kernel of a product [..., m, k] times [..., k, n], with a bias [n] or without.

    It is for where oneDNN is missing, and for float32; None for more than MOST_PRODUCTS.  Threads
    share one product, or take one after the other of several.
    """
    *outer, m, n = node.shape
    count = math.prod(outer)
    if count > MOST_PRODUCTS or any(x.dtype != F32 for x in node.inputs):
        return None
    shape, has_bias = (m, n, node.inputs[0].shape[-1]), len(node.inputs) > 2
    tiles = _Tiles(shape, [s[-2:] for s in strides[:2]], 1 if outer else threads)

    def call(i: int, first: int, second: int) -> KernelCall:
        def words(ins: Sequence[Place], outs: Sequence[Place], memory: Place) -> list[int]:
            (x, at), (y, place), *_ = ins
            result = outs[0][0], outs[0][1] + i * m * n * F32.itemsize
            room = memory[0], memory[1] + i * tiles.scratch
            head = tiles.head((x, at + first), (y, place + second), room)
            return [*head, *result, has_bias, *ins[-1]]

        return KernelCall(_text(None, tiles.lanes), words)

    calls = [call(i, *begin) for i, begin in enumerate(_offsets(node, strides, outer).tolist())]
    kernel = TogetherKernel(node, calls, threads, (), 0) if outer else NativeKernel(node, calls)
    kernel.scratch = count * tiles.scratch
    kernel.strided = [i < 2 for i, _ in enumerate(node.inputs)]
    return kernel


def _offsets(node: Node, strides: Sequence[Shape], outer: Sequence[int]) -> Array:
    """Return where the two operands of each product of a batch begin, in bytes."""
    pairs = []
    for x, steps in zip(node.inputs[:2], strides, strict=False):
        axes = np.ix_(*(step * np.arange(n) for n, step in zip(x.shape[:-2], steps, strict=False)))
        begin = sum(axes, np.zeros((), np.int64))
        pairs.append(np.broadcast_to(begin, outer).reshape(-1))
    return np.stack(pairs, 1)


def fused_product(
    node: Node, op: FusedProduct, strides: Sequence[Shape], threads: int
) -> NativeKernel:
    """Return the kernel of a product and what elementwise ops make of it.

    Its operands may be views of any strides; what the others read is contiguous.
    """
    (m, n), (_, count) = op.product.shape, node.inputs[0].shape
    tiles = _Tiles((m, n, count), strides, threads)
    kernel = specialise_tiles(op.then, tiles.pitch)

    def words(ins: Sequence[Place], outs: Sequence[Place], memory: Place) -> list[int]:
        head = tiles.head(ins[0], ins[1], memory)
        return [*head, *kernel.block(1, [memory, *ins[2:], *outs], memory, stream=False)]

    source = _text(kernel.pattern, tiles.lanes)
    inplace = [(), (), *kernel.inplace[1:]]
    strided = (True, True, *(False for _ in node.inputs[2:]))
    return NativeKernel(node, [KernelCall(source, words)], tiles.scratch, strided, inplace)


class _Tiles:
    """The tiles of a product of m rows, n columns and so many sums.

    pitch    bytes from one row of a tile to the next
    scratch  bytes for tiles, and for operands in the order in which they are multiplied
    """

    def __init__(self, shape: tuple[int, int, int], strides: Sequence[Shape], threads: int) -> None:
        m, n, count = shape
        self.lanes = lanes = onednn.block()
        wide, rows = _width(n, count, lanes), ROWS[lanes]
        self.pitch = (wide + lanes) * F32.itemsize
        self._share = wide // lanes * count + rows * (wide // lanes + 1)
        vectors = math.ceil(m / rows) * count + threads * self._share
        self.scratch = round_up(vectors * lanes * F32.itemsize)
        self._numbers = [threads, m, n, count, wide]
        self._steps = [step // F32.itemsize for each in strides[:2] for step in each]

    def head(self, x: Place, y: Place, memory: Place) -> list[int]:
        """Return the first words of the argument block."""
        across, down = self._steps[:2], self._steps[2:]
        return [*self._numbers, *x, *across, *y, *down, *memory, self._share]


def _width(columns: int, count: int, lanes: int) -> int:
    """Return how many columns a tile has, in whole groups of those that are computed at once."""
    group = VECTORS * lanes
    wide = max(min(PANEL // count, WIDEST, columns + group - 1) // group, 1) * group
    # Rows of a tile are not to follow each other as those of the operands do: axes would merge.
    return wide + group if wide + lanes == columns else wide


@functools.lru_cache(4096)
def _text(pattern: KernelPattern | None, lanes: int) -> KernelSource:
    """Return the text of the product, and of the elementwise kernel that takes its tiles if any."""
    products = outer_products(ROWS[lanes], VECTORS)
    fixed: dict[str, object] = {
        "L": lanes,
        "R": ROWS[lanes],
        "NV": VECTORS,
        "CHUNK": CHUNK,
        "STRETCH": STRETCH,
    }
    fixed |= {"PLAIN": int(pattern is None), "vec": "NAME_vec"}
    if pattern is None:
        return KernelSource(with_macros(TEXT.replace("PRODUCTS", products), **fixed, FETCH=""))
    count = len(pattern.dtypes)
    constants = 1 + max((value.constant for value in pattern.values), default=-1)
    fetched = [k for k in range(1, pattern.inputs) if pattern.accesses[k] == "unit"]
    fetches = (
        f"NAME_fetch(operand + {5 * k}, slots, rows, c * {size}, {VECTORS * lanes * size});"
        for k, size in ((k, pattern.dtypes[k].itemsize) for k in fetched)
    )
    text = with_macros(
        TEXT.replace("PRODUCTS", products),
        **fixed,
        COUNT=count,
        WORDS=10 + 5 * count + constants,
        FETCH=" ".join(fetches),
    )
    return KernelSource(f"{unit_text(pattern)}\n{text}", functions_of(pattern))

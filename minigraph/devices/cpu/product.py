"""Sums of products in C, of every dtype, by tiles in registers.

A tile of the result has a few rows.  Columns of the second operand are packed into a panel that
stays in the second-level cache while all tiles below are computed.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from minigraph.devices.cpu import onednn
from minigraph.devices.cpu.kernel import KernelCall, NativeKernel, Place, second_level_cache_bytes
from minigraph.graph import BOOL, DType, Node, Shape
from minigraph.jit.emitter import block, function
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.jit.source import KernelSource
from minigraph.program import round_up

NAME = "panels"  # the algorithm
TEXT = Path(__file__).with_name("product.c").read_text()
ROWS = {8: 6, 16: 12}  # of a tile, by the floats of a vector: the sums fit the registers
REGISTERS = {8: 16, 16: 32}
DEPTH = 256  # products that are added up in registers
MIN_PANEL = 256 << 10  # bytes of a panel, or a quarter of the second-level cache if that is more
WIDEST = 1024  # columns of a panel, at most
TASKS = 2  # for each thread, at least, if the work can be divided so far
Three = tuple[int, int, int]


def sums(rows: int, vectors: int) -> list[tuple[int, int]]:
    """Return the sums s{r}_{j} that a product keeps in registers."""
    return list(itertools.product(range(rows), range(vectors)))


def pinned(vectors: int) -> list[str]:
    """Return statements that keep f0, f1 and so on in registers; gcc would load them again."""
    each = [f'__asm__("" : "+x"(f{j}));' for j in range(vectors)]
    return ["#if L * 4 <= MG_VECTOR_BYTES", *each, "#endif"]


class Piece(NamedTuple):
    """Sums of products along the same axes; the fields are those of `product.c`, in elements."""

    rows: int
    columns: Three
    sums: Three
    x_row: int
    x_sum: Three
    y_sum: Three
    y_column: Three
    z_row: int
    z_column: Three
    x: int = 0
    y: int = 0
    z: int = 0


class Batch(NamedTuple):
    """An axis of independent products: its length, and the distances of their operands."""

    extent: int
    x: int
    y: int
    z: int
    bias: int = 0


class Shared(NamedTuple):
    """The division of a product.

    tile   rows of a tile, and vectors of a row
    lanes  elements of a vector
    wide   columns of a panel
    share  elements of scratch memory for each thread
    words  the argument block from the pieces on
    """

    tile: tuple[int, int]
    lanes: int
    wide: int
    share: int
    tasks: int
    words: list[int]


def outer_products(
    rows: int,
    vectors: int,
    element: str = "float",
    steps: tuple[str, str] = ("L", "1"),
    ops: str = "+*",
) -> str:
    """Return the function NAME_products: the sums over t of x[t * S + r * D] times y[j * room + t].

    They are stored to z[r * gap + j], or added to it.

    element  C's type of an element of x
    steps    S and D in C, which the compiler knows
    ops      C's operators of the sum and of the product
    """
    join, meet, each = ops[0], ops[1], sums(rows, vectors)
    step, distance = steps
    return function(
        f"MG_CONTRACT void NAME_products(\n    int64_t count, int64_t room, const {element} *x, "
        "const vec *y, vec *z, int64_t gap,\n    int begun)",
        [
            *(f"vec s{r}_{j} = {{0}};" for r, j in each),
            *block(
                f"for (int64_t t = 0; t < count; t++, x += {step}, y++)",
                *(f"vec f{j} = y[{j} * room];" for j in range(vectors)),
                *pinned(vectors),
                *(f"s{r}_{j} {join}= x[{r} * {distance}] {meet} f{j};" for r, j in each),
            ),
            *block("if (begun)", *(f"s{r}_{j} {join}= z[{r} * gap + {j}];" for r, j in each)),
            *(f"z[{r} * gap + {j}] = s{r}_{j};" for r, j in each),
        ],
    )


def plain_product(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel:
    *outer, m, n = node.shape
    size, count = node.dtype.itemsize, node.inputs[0].shape[-1]
    steps = [[s // size for s in each] for each in (*strides[:2], node.spec.strides)]
    (x_row, x_sum), (y_sum, y_column), (z_row, _) = (each[-2:] for each in steps)
    piece = Piece(
        m, (1, 1, n), (1, 1, count),
        x_row, (0, 0, x_sum), (0, 0, y_sum), (0, 0, y_column), z_row, (0, 0, 1),
    )  # fmt: skip
    lead = [
        [0] * (len(outer) - len(x.shape) + 2)
        + [0 if k == 1 else s for k, s in zip(x.shape[:-2], each, strict=False)]
        for x, each in zip((*node.inputs[:2], node), steps, strict=True)
    ]
    batches = [Batch(*axis) for axis in zip(outer, *lead, strict=True)]
    kernel = kernel_of_pieces(node, (0, 1), [[piece]], batches, (0, 1), threads)
    kernel.strided = [i < 2 for i, _ in enumerate(node.inputs)]
    return kernel


# ---------------------------------------------------------------- kernels


def kernel_of_pieces(
    node: Node,
    order: tuple[int, int],
    calls: Sequence[Sequence[Piece]],
    batches: Sequence[Batch],
    bias: tuple[int, int],
    threads: int,
) -> NativeKernel:
    """Return the kernel of pieces, for each batch; pieces of later calls add to the result.

    order  indices of the inputs x and y; a third input is the bias
    bias   distances of the bias from row to row and from column to column
    """
    count = math.prod(axis.extent for axis in batches)
    parts, room = [], 0
    for i, pieces in enumerate(calls):
        shared = _shared(pieces, count, node.dtype, threads)
        source = _text(shared.tile, shared.lanes, node.dtype, len(node.inputs) == 3)
        parts.append(_call(source, shared, order, len(pieces), batches, bias, threads, i > 0))
        room = max(room, _room(shared, threads, node.dtype.itemsize))
    return NativeKernel(node, parts, room, algorithm=NAME)


def _room(shared: Shared, threads: int, size: int) -> int:
    return round_up(threads * shared.share * size)


def _call(
    source: KernelSource,
    shared: Shared,
    order: tuple[int, int],
    pieces: int,
    batches: Sequence[Batch],
    bias: tuple[int, int],
    threads: int,
    begun: bool = False,
) -> KernelCall:
    count = math.prod(axis.extent for axis in batches)

    def words(ins: Sequence[Place], outs: Sequence[Place], memory: Place) -> list[int]:
        head = [threads, begun, shared.wide, pieces, shared.tasks, count]
        head += [len(batches), shared.share, *bias]
        places = (ins[order[0]], ins[order[1]], outs[0], ins[-1], memory)
        head += [*itertools.chain(*places), *itertools.chain(*batches)]
        return [*head, *shared.words]

    return KernelCall(source, words)


def _shared(pieces: Sequence[Piece], batches: int, dtype: DType, threads: int) -> Shared:
    lanes = onednn.block() * 4 // dtype.itemsize
    largest = max(pieces, key=lambda p: math.prod(p.columns))
    rows, columns = largest.rows, math.prod(largest.columns)
    tile = _tile(rows, columns, lanes)
    group = tile[1] * lanes
    panel = max(MIN_PANEL, second_level_cache_bytes() // 4)
    wide = min(panel // (DEPTH * dtype.itemsize), WIDEST, columns + group - 1)
    tasks = batches * len(pieces)
    if tasks < TASKS * threads:
        wide = min(wide, columns // math.ceil(TASKS * threads / tasks) + group - 1)
    wide = max(wide // group, 1) * group
    words, total = [], 0
    for p in pieces:
        panels = math.ceil(math.prod(p.columns) / wide)
        parts = min(
            math.ceil(p.rows / tile[0]), math.ceil(TASKS * threads / max(tasks * panels, 1))
        )
        parts = max(parts, 1) if threads > 1 else 1
        total += batches * panels * parts
        words += [
            v
            for each in (*p, panels, parts)
            for v in (each if isinstance(each, tuple) else (each,))
        ]
    share = wide * DEPTH + tile[0] * (DEPTH + wide + lanes)
    return Shared(tile, lanes, wide, -(-share // 64) * 64, total, words)


def _tile(rows: int, columns: int, lanes: int) -> tuple[int, int]:
    """Return the rows, and the vectors of a row, of the tiles that waste the least work."""
    most, registers = ROWS[onednn.block()], REGISTERS[onednn.block()]
    tiles = [(r, (registers - 2) // (r + 1)) for r in range(1, most + 1)]

    def covered(tile: tuple[int, int]) -> float:
        down, across = math.ceil(rows / tile[0]), math.ceil(columns / (tile[1] * lanes))
        loads = 1 / tile[0] + 1 / tile[1] / 2
        return down * across * tile[0] * tile[1] * (1 + loads)

    return min(tiles, key=covered)


@functools.lru_cache(4096)
def _text(tile: tuple[int, int], lanes: int, dtype: DType, bias: bool) -> KernelSource:
    is_bool = dtype == BOOL
    fixed: dict[str, object] = {"T": c_type(dtype), "L": lanes, "R": tile[0], "NV": tile[1]}
    fixed |= {"DEPTH": DEPTH, "WIDEST": WIDEST, "BOOL": int(is_bool), "BIAS": int(bias)}
    fixed |= {"JOIN": "|" if is_bool else "+", "vec": "NAME_vec"}
    text = TEXT.replace(
        "PRODUCTS", outer_products(*tile, "T", ("1", "DEPTH"), "|&" if is_bool else "+*")
    )
    return KernelSource(with_macros(text, **fixed))

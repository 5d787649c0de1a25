"""Tensor contractions in C, of every dtype, by tiles in registers.

A tile of the result has a few rows.  Columns of the second operand are packed into a panel that
stays in the second-level cache while all tiles of these columns are computed.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from minigraph.devices.cpu import onednn
from minigraph.devices.cpu.kernel import (
    KernelCall,
    NativeKernel,
    Operands,
    second_level_cache_bytes,
)
from minigraph.graph import BOOL, DType, Node, Shape
from minigraph.jit.emitter import block, function
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.jit.source import KernelSource
from minigraph.program import round_up

NAME = "panels"  # the algorithm
TEXT = Path(__file__).with_name("product.c").read_text()
MAX_ROWS = {8: 6, 16: 12}  # rows of a tile, by the floats of a vector: the sums fit the registers
REGISTERS = {8: 16, 16: 32}  # vector registers, by the floats of a vector
DEPTH = 256  # products that are added in registers
MIN_PANEL_BYTES = 256 << 10  # or a quarter of the second-level cache, if that is more
MAX_PANEL_COLUMNS = 1024
GROUP = 16  # rows that are packed side by side
TASKS_PER_THREAD = 2  # least number, if the work can be divided so far
Three = tuple[int, int, int]


def sums(rows: int, vectors: int) -> list[tuple[int, int]]:
    """Return the sums s{r}_{j} that a product keeps in registers."""
    return list(itertools.product(range(rows), range(vectors)))


def pinned(vectors: int) -> list[str]:
    """Return statements that keep f0, f1 and so on in registers; gcc would load them again."""
    statements = [f'__asm__("" : "+x"(f{j}));' for j in range(vectors)]
    return ["#if L * 4 <= MG_VECTOR_BYTES", *statements, "#endif"]


class Contraction(NamedTuple):
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


class Blocking(NamedTuple):
    """The division of contractions into panels, tiles and tasks.

    tile     rows of a tile, and vectors of a row
    lanes    elements of a vector
    scratch  elements of scratch memory for each thread
    tasks    number of tasks of all contractions
    words    the argument block from the contractions on
    """

    tile: tuple[int, int]
    lanes: int
    panel_columns: int
    scratch: int
    tasks: int
    words: list[int]


def outer_products(
    rows: int,
    vectors: int,
    element: str = "float",
    steps: tuple[str, str] = ("L", "1"),
    ops: str = "+*",
) -> str:
    """Return NAME_products: the sums over t of x[t * S + r * D] times y[j * y_stride + t].

    They are stored to z[r * z_stride + j], or added to it.

    element  C's type of an element of x
    steps    S and D in C, which the compiler knows
    ops      C's operators of the sum and of the product
    """
    plus, times = ops[0], ops[1]
    step, distance = steps
    cells, z = sums(rows, vectors), "z[{} * z_stride + {}]"
    return function(
        f"MG_CONTRACT void NAME_products(\n    int64_t count, int64_t y_stride, const {element} *x,"
        "\n    const vec *y, vec *z, int64_t z_stride, int accumulate)",
        [
            *(f"vec s{r}_{j} = {{0}};" for r, j in cells),
            *block(
                f"for (int64_t t = 0; t < count; t++, x += {step}, y++)",
                *(f"vec f{j} = y[{j} * y_stride];" for j in range(vectors)),
                *pinned(vectors),
                *(f"s{r}_{j} {plus}= x[{r} * {distance}] {times} f{j};" for r, j in cells),
            ),
            *block("if (accumulate)", *(f"s{r}_{j} {plus}= {z.format(r, j)};" for r, j in cells)),
            *(f"{z.format(r, j)} = s{r}_{j};" for r, j in cells),
        ],
    )


def matmul_kernel(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel:
    *outer, m, n = node.shape
    size, count = node.dtype.itemsize, node.inputs[0].shape[-1]
    steps = [[n // size for n in s] for s in (*strides[:2], node.spec.strides)]
    (x_row, x_sum), (y_sum, y_column), (z_row, _) = (s[-2:] for s in steps)
    contraction = Contraction(
        m, (1, 1, n), (1, 1, count),
        x_row, (0, 0, x_sum), (0, 0, y_sum), (0, 0, y_column), z_row, (0, 0, 1),
    )  # fmt: skip
    batch_steps = [
        [0] * (len(outer) - len(x.shape) + 2)
        + [0 if k == 1 else s for k, s in zip(x.shape[:-2], operand_strides, strict=False)]
        for x, operand_strides in zip((*node.inputs[:2], node), steps, strict=True)
    ]
    batches = [Batch(*axis) for axis in zip(outer, *batch_steps, strict=True)]
    kernel = contraction_kernel(node, (0, 1), [[contraction]], batches, (0, 1), threads)
    kernel.strided = [i < 2 for i, _ in enumerate(node.inputs)]
    return kernel


# ---------------------------------------------------------------- kernels


def contraction_kernel(
    node: Node,
    order: tuple[int, int],
    calls: Sequence[Sequence[Contraction]],
    batches: Sequence[Batch],
    bias: tuple[int, int],
    threads: int,
) -> NativeKernel:
    """Return the kernel of contractions of all batches; later calls add to the result.

    order  indices of the inputs x and y; a third input is the bias
    bias   distances of the bias from row to row and from column to column
    """
    count = math.prod(axis.extent for axis in batches)
    parts, scratch = [], 0
    for i, contractions in enumerate(calls):
        blocking = _blocking(contractions, count, node.dtype, threads)
        source = _text(blocking.tile, blocking.lanes, node.dtype, len(node.inputs) == 3)
        head = [threads, i > 0, blocking.panel_columns, len(contractions), blocking.tasks, count]
        head += [len(batches), blocking.scratch, *bias]
        tail = [*itertools.chain(*batches), *blocking.words]
        parts.append(KernelCall(source, functools.partial(_block, order, head, tail)))
        scratch = max(scratch, round_up(threads * blocking.scratch * node.dtype.itemsize))
    return NativeKernel(node, parts, scratch, algorithm=NAME)


def _block(
    order: tuple[int, int], head: Sequence[int], tail: Sequence[int], operands: Operands
) -> list[int]:
    ins, outs, scratch, _ = operands
    places = (ins[order[0]], ins[order[1]], outs[0], ins[-1], scratch)
    return [*head, *itertools.chain(*places), *tail]


def _blocking(
    contractions: Sequence[Contraction], batches: int, dtype: DType, threads: int
) -> Blocking:
    lanes = onednn.block() * 4 // dtype.itemsize
    largest = max(contractions, key=lambda c: math.prod(c.columns))
    columns = math.prod(largest.columns)
    tile = _tile(largest.rows, columns, lanes)
    tile_columns = tile[1] * lanes
    panel_bytes = max(MIN_PANEL_BYTES, second_level_cache_bytes() // 4)
    width = min(panel_bytes // (DEPTH * dtype.itemsize), MAX_PANEL_COLUMNS)
    tasks, min_tasks = batches * len(contractions), TASKS_PER_THREAD * threads
    width = min(width, columns // math.ceil(min_tasks / tasks) + tile_columns - 1)
    width = max(width // tile_columns, 1) * tile_columns
    words: list[int] = []
    total = 0
    for c in contractions:
        panels, parts = math.ceil(math.prod(c.columns) / width), 1
        if threads > 1:
            max_parts = math.ceil(min_tasks / max(tasks * panels, 1))
            parts = max(min(math.ceil(c.rows / tile[0]), max_parts), 1)
        total += batches * panels * parts
        for field in (*c, panels, parts):
            words += field if isinstance(field, tuple) else (field,)
    scratch = width * DEPTH + tile[0] * (DEPTH + width + lanes)
    return Blocking(tile, lanes, width, math.ceil(scratch / 64) * 64, total, words)


def _tile(rows: int, columns: int, lanes: int) -> tuple[int, int]:
    """Return the rows, and the vectors of a row, of the tiles that waste the least work."""
    max_rows, registers = MAX_ROWS[onednn.block()], REGISTERS[onednn.block()]
    tiles = [(r, (registers - 2) // (r + 1)) for r in range(1, max_rows + 1)]

    def cost(tile: tuple[int, int]) -> float:
        tiles_down, tiles_across = math.ceil(rows / tile[0]), math.ceil(columns / (tile[1] * lanes))
        loads = 1 / tile[0] + 1 / tile[1] / 2
        return tiles_down * tiles_across * tile[0] * tile[1] * (1 + loads)

    return min(tiles, key=cost)


@functools.lru_cache(4096)
def _text(tile: tuple[int, int], lanes: int, dtype: DType, bias: bool) -> KernelSource:
    is_bool = dtype == BOOL
    fixed: dict[str, object] = {"T": c_type(dtype), "L": lanes, "R": tile[0], "NV": tile[1]}
    fixed |= {
        "DEPTH": DEPTH,
        "MAX_PANEL_COLUMNS": MAX_PANEL_COLUMNS,
        "GROUP": GROUP,
        "BOOL": int(is_bool),
    }
    fixed |= {"BIAS": int(bias), "ADD": "|" if is_bool else "+", "vec": "NAME_vec"}
    text = TEXT.replace(
        "PRODUCTS", outer_products(*tile, "T", ("1", "DEPTH"), "|&" if is_bool else "+*")
    )
    return KernelSource(with_macros(text, **fixed))

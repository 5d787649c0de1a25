"""Products of matrices in C, where oneDNN is missing: sums of outer products in registers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from minigraph.autotune.candidate import Candidate
from minigraph.devices.cpu import compiler, onednn
from minigraph.devices.cpu.kernel import KernelCall, NativeKernel, Place
from minigraph.devices.cpu.onednn import F32
from minigraph.devices.cpu.product import ROWS, VECTORS, pinned, sums
from minigraph.devices.problem import Arrangement
from minigraph.graph import Node, Shape
from minigraph.jit.emitter import block, function
from minigraph.jit.macros import with_macros
from minigraph.jit.source import KernelSource
from minigraph.ops.matmul import Matmul

TEXT = Path(__file__).with_name("panel_product.c").read_text()
NAME = "panels"  # the algorithm
CHUNK = 256  # rows of a chunk
TASKS = 4  # for each thread, at least, where there can be as many
FEWEST = 8  # groups of rows of a task, at least: a task copies its panel


def candidates(arrangement: Arrangement, threads: int) -> Iterator[Candidate]:
    """Yield the algorithm if it computes a node, and oneDNN is missing."""
    node, strides, layouts = arrangement
    if computes(node, strides):
        yield Candidate(NAME, layouts, functools.partial(panel_product, node, strides, threads))


def computes(node: Node, strides: Sequence[Shape]) -> bool:
    """Whether this is the kernel of a node: oneDNN is missing, and a compiler is there."""
    return (
        isinstance(node.op, Matmul)
        and node.dtype == F32
        and node.size > 0
        and onednn.library() is None
        and compiler.compiler() is not None
        and _batches(node, strides) is not None
    )


def panel_product(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel:
    """Return the kernel of a product [..., m, k] times [..., k, n], with a bias [n] or without.

    strides  of its inputs, in bytes
    """
    batched, (*_, m, n), lanes = _batches(node, strides), node.shape, onednn.block()
    assert batched
    batches, steps = batched
    length, has_bias = node.inputs[0].shape[-1], len(node.inputs) == 3
    tasks, groups = batches * math.ceil(n / (VECTORS * lanes)), math.ceil(m / ROWS[lanes])
    parts = max(1, min(math.ceil(TASKS * threads / tasks), groups // FEWEST))
    values = [threads, batches, m, n, length, has_bias, parts, *steps]

    def words(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        return [*values, *(v for place in (*ins[:2], ins[-1], *outs) for v in place)]

    # It reads operands that lie as `strides` says; others are copied before.
    strided = [i < 2 for i, _ in enumerate(node.inputs)]
    call = KernelCall(_text(lanes), words)
    kernel = NativeKernel(node, [call], strided=strided, algorithm=NAME)
    kernel.threads = threads
    return kernel


def _batches(node: Node, strides: Sequence[Shape]) -> tuple[int, list[int]] | None:
    """Return how many products there are, and the steps in floats between what they read.

    Those of x, then of w: from product to product, from row to row, from column to column.  None
    where the steps between products are not all alike.
    """
    outer = node.shape[:-2]
    steps: list[int] = []
    for x, nbytes in zip(node.inputs[:2], strides, strict=False):
        own = [s // x.dtype.itemsize for s in nbytes]
        if math.prod(x.shape[:-2]) == 1:
            steps.append(0)
        elif x.shape[:-2] == outer and all(
            a == b * n for a, b, n in zip(own[:-3], own[1:-2], outer[1:], strict=True)
        ):
            steps.append(own[-3])
        else:
            return None
        steps += own[-2:]
    return math.prod(outer), steps


@functools.cache
def _text(lanes: int) -> KernelSource:
    products = "\n".join(_products(name, rows) for name, rows in (("R", ROWS[lanes]), ("1", 1)))
    macros = {"L": lanes, "NV": VECTORS, "R": ROWS[lanes], "C": CHUNK, "vec": "NAME_vec"}
    return KernelSource(with_macros(TEXT.replace("PRODUCTS", products), **macros))


def _products(name: str, rows: int) -> str:
    """Return the function that adds the products of so many rows and a chunk to the result."""
    each = sums(rows, VECTORS)
    return function(
        f"MG_FAST void NAME_products_{name}(\n"
        "    const float *x, int64_t row, int64_t column, int64_t count, const float *panel,\n"
        "    float *y, int64_t pitch, int64_t columns)",
        [
            *(f"const float *x{r} = x + {r} * row;" for r in range(rows)),
            *(f"vec s{r}_{j} = {{0}};" for r, j in each),
            "const vec *w = (const vec *)panel;",
            *block(
                "for (int64_t k = 0; k < count; k++, w += NV)",
                *(f"vec f{j} = w[{j}];" for j in range(VECTORS)),
                *pinned(VECTORS),
                *(f"s{r}_{j} += x{r}[k * column] * f{j};" for r, j in each),
            ),
            *block(
                "if (columns == NV * L)",
                *(f"*(vec *)(y + {r} * pitch + {j} * L) += s{r}_{j};" for r, j in each),
                "return;",
            ),
            f"float made[{rows} * NV * L];",
            *(f"*(vec *)(made + ({r} * NV + {j}) * L) = s{r}_{j};" for r, j in each),
            *block(
                f"for (int64_t i = 0; i < {rows}; i++)",
                "for (int64_t j = 0; j < columns; j++) y[i * pitch + j] += made[i * NV * L + j];",
            ),
        ],
    )

"""Cumulative sums and products, in C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minigraph.devices.cpu.indexing import columns_for
from minigraph.devices.cpu.kernel import KernelCall, NativeKernel, Place
from minigraph.graph import Node, Op, around
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.jit.source import KernelSource
from minigraph.ops.cumulative import CumulativeProduct, CumulativeSum
from minigraph.ops.elementwise import kind
from minigraph.program.steps import round_up

TEXT = Path(__file__).with_name("cumulative.c").read_text()
PART = 4096  # elements of a part of a row
FEW = 16  # rows, up to which rows are cut into parts
COLUMNS = 512  # that are added up side by side, at most


def cumulative_sum(op: CumulativeSum, node: Node, threads: int) -> NativeKernel | None:
    # -0 + -0 is -0, but 0 + -0 is 0.  In float64 a part may overflow where the row does not.
    of_floats = kind(node.dtype) == "f"
    parted = node.dtype != np.float64
    return _kernel(op, node, threads, "+", "-0.0" if of_floats else "0", parted, op.reverse)


def cumulative_product(op: CumulativeProduct, node: Node, threads: int) -> NativeKernel | None:
    return _kernel(op, node, threads, "*", "1", kind(node.dtype) != "f", False)


def _kernel(
    op: CumulativeSum | CumulativeProduct,
    node: Node,
    threads: int,
    join: str,
    none: str,
    parted: bool,
    reverse: bool,
) -> NativeKernel | None:
    """Return the kernel.

    join    C's operator
    none    what changes nothing it is joined with
    parted  whether elements may be joined in another order
    """
    if kind(node.dtype) == "b":
        return None
    outer, n, inner = around(node.shape, op.axis)
    text = with_macros(
        TEXT,
        T=c_type(node.dtype),
        W="double" if kind(node.dtype) == "f" else c_type(node.dtype),
        OPERATOR=join,
        NONE=none,
        REVERSE=int(reverse),
    )
    parts = -(-n // PART) if parted and inner == 1 and outer <= FEW else 1
    columns = min(columns_for(threads, outer, inner, node.dtype), COLUMNS)
    sizes = (threads, outer, n, inner, columns, parts, PART)

    def block(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        return [*sizes, *(v for place in (*ins, *outs, scratch) for v in place)]

    room = round_up(8 * outer * parts) if parts > 1 else 0
    return NativeKernel(node, [KernelCall(KernelSource(text), block)], room, inplace=((0,),))


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {
    CumulativeSum: cumulative_sum,
    CumulativeProduct: cumulative_product,
}

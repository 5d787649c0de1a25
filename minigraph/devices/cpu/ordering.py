"""Sorting, places in sorted rows, and the largest element of a row, in C."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minigraph.devices.cpu.kernel import KernelCall, NativeKernel, Place, call
from minigraph.graph import BOOL, Node, Op, around
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.jit.source import KernelSource
from minigraph.ops.elementwise import kind
from minigraph.ops.ordering import Argsort, Searchsorted
from minigraph.ops.reduction import Argmax
from minigraph.program.steps import round_up

ARGMAX, ARGSORT, SEARCHSORTED = (
    Path(__file__).with_name(f"{name}.c").read_text()
    for name in ("argmax", "argsort", "searchsorted")
)
FEW = 64  # a heap finds one element of so many or more sooner than all are sorted
LONGEST = (1 << 32) - 1  # of a row: its places have 32 bits


def argsort(op: Argsort, node: Node, threads: int) -> NativeKernel | None:
    (x,) = node.inputs
    outer, n, inner = around(x.shape, op.axis)
    if n > LONGEST:
        return None
    threads = min(threads, outer * inner)
    few = op.count * FEW <= n
    text = with_macros(
        ARGSORT,
        T=c_type(x.dtype),
        K=f"uint{8 * x.dtype.itemsize}_t",
        IS_BOOL=int(kind(x.dtype) == "b"),
        IS_FLOAT=int(kind(x.dtype) == "f"),
        IS_SIGNED=int(kind(x.dtype) == "i"),
        DESCENDING=int(op.descending),
        FEW=int(few),
    )
    pair = 2 * max(x.dtype.itemsize, 4)
    room = round_up((op.count if few else 2 * n) * pair)

    def block(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        sizes = (threads, outer, n, inner, op.count, room)
        return [*sizes, *(v for place in (*ins, *outs, scratch) for v in place)]

    return NativeKernel(node, [KernelCall(KernelSource(text), block)], threads * room)


def searchsorted(op: Searchsorted, node: Node, threads: int) -> NativeKernel:
    x, v = node.inputs
    text = with_macros(SEARCHSORTED, T=c_type(x.dtype), RIGHT=int(op.right))
    rows = math.prod(x.shape[:-1])
    return NativeKernel(node, [call(text, threads, rows, x.shape[-1], v.shape[-1])])


def argmax(op: Argmax, node: Node, threads: int) -> NativeKernel | None:
    x = node.inputs[0]
    sizes = around(x.shape, *op.axes)
    if sizes[1] > np.iinfo(np.int32).max:
        return None
    text = with_macros(ARGMAX, T=c_type(x.dtype), BOOL=int(x.dtype == BOOL))
    return NativeKernel(node, [call(text, threads, *sizes)])


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {
    Argsort: argsort,
    Searchsorted: searchsorted,
    Argmax: argmax,
}

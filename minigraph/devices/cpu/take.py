"""Elements chosen by indices, and the gradient, in C."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.graph import DType, Node, Op, around
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.ops.elementwise import kind
from minigraph.ops.indexing import Take, TakeBackward

TEXT = Path(__file__).with_name("take.c").read_text()
LINE = 64  # bytes that no two threads write to


def take(op: Take, node: Node, threads: int) -> NativeKernel:
    x, indices = node.inputs
    # What is chosen is moved, whatever it is.
    moved = f"uint{8 * x.dtype.itemsize}_t"
    text = with_macros(TEXT, T=moved, L=c_type(indices.dtype), WRAPS=int(not op.tokens), BACKWARD=0)
    sizes = around(x.shape, op.axis)
    return NativeKernel(node, [call(text, threads, *sizes, indices.size, 0)], refuses=True)


def take_backward(op: TakeBackward, node: Node, threads: int) -> NativeKernel | None:
    dy, indices = node.inputs
    if kind(dy.dtype) == "b":
        return None
    text = with_macros(
        TEXT, T=c_type(dy.dtype), L=c_type(indices.dtype), WRAPS=int(not op.tokens), BACKWARD=1
    )
    outer, n, columns = around(op.shape, op.axis)
    block = columns_for(threads, outer, columns, dy.dtype)
    values = threads, outer, n, columns, indices.size, block
    return NativeKernel(node, [call(text, *values)], refuses=True)


def columns_for(threads: int, outer: int, columns: int, dtype: DType) -> int:
    """Return how many columns a thread adds up, of so many beside each other `outer` times."""
    least = max(LINE // dtype.itemsize, 1)
    return math.ceil(columns / math.ceil(threads / outer) / least) * least


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {
    Take: take,
    TakeBackward: take_backward,
}

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
from minigraph.ops.reduction import FEW

TEXT = Path(__file__).with_name("take.c").read_text()
TOTALS = {"float32": "double", "float64": "long double"}
LINE = 64  # bytes that no two threads write to


def take(op: Take, node: Node, threads: int) -> NativeKernel:
    x, indices = node.inputs
    # What is chosen is moved, whatever it is.
    moved = f"uint{8 * x.dtype.itemsize}_t"
    text = with_macros(TEXT, T=moved, BACKWARD=0, W=moved, FEW=0, **_places(op, indices))
    sizes = around(x.shape, op.axis)
    return NativeKernel(node, [call(text, threads, *sizes, indices.size, 0)], refuses=True)


def take_backward(op: TakeBackward, node: Node, threads: int) -> NativeKernel | None:
    dy, indices = node.inputs
    if kind(dy.dtype) == "b":
        return None
    outer, n, columns = around(op.shape, op.axis)
    count, held, wide = indices.size, c_type(dy.dtype), total_type(dy.dtype)
    few = count if wide == held else FEW
    text = with_macros(TEXT, T=held, BACKWARD=1, W=wide, FEW=few, **_places(op, indices))
    block = columns_for(threads, outer, columns, dy.dtype)
    values = threads, outer, n, columns, count, block
    room = 8 * (n + count) if count > few else 0
    return NativeKernel(node, [call(text, *values, scratch=True)], room, refuses=True)


def _places(op: Take | TakeBackward, indices: Node) -> dict[str, object]:
    return {"L": c_type(indices.dtype), "WRAPS": int(not op.tokens)}


def total_type(dtype: DType) -> str:
    """Return the C type in which so many numbers are added up that a float's error would grow."""
    return TOTALS.get(dtype.name, c_type(dtype))


def columns_for(threads: int, outer: int, columns: int, dtype: DType) -> int:
    """Return how many columns a thread adds up, of so many beside each other `outer` times."""
    least = max(LINE // dtype.itemsize, 1)
    return math.ceil(columns / math.ceil(threads / outer) / least) * least


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {
    Take: take,
    TakeBackward: take_backward,
}

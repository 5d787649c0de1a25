"""Elements chosen by indices of each row along an axis, in C."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.devices.cpu.take import LINE, columns_for, total_type
from minigraph.graph import DType, Node, Op, around
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.ops.along import AddAlong, PutAlong, TakeAlong
from minigraph.ops.elementwise import kind
from minigraph.ops.reduction import FEW

TEXT = Path(__file__).with_name("along.c").read_text()
TAKE, ADD, PUT = range(3)
APART = 1 << 16  # sums of a thread that are beside each other


def take_along(op: TakeAlong, node: Node, threads: int) -> NativeKernel:
    x, indices = node.inputs
    # What is chosen is moved, whatever it is.
    text = _text(TAKE, f"uint{8 * x.dtype.itemsize}_t", indices.dtype)
    values = threads, *around(x.shape, op.axis), indices.shape[op.axis], 0
    return NativeKernel(node, [call(text, *values)], refuses=True)


def add_along(op: AddAlong, node: Node, threads: int) -> NativeKernel | None:
    x, indices = node.inputs
    if kind(x.dtype) == "b":
        return None
    outer, count, columns = around(indices.shape, op.axis)
    held, wide, n = c_type(x.dtype), total_type(x.dtype), node.shape[op.axis]
    apart = count > FEW and wide != held
    text = _text(ADD, held, indices.dtype, wide, apart)
    block = columns_for(threads, outer, columns, node.dtype)
    room = 0
    if apart:
        block = min(block, max(APART // n, LINE // node.dtype.itemsize))
        room = threads * n * block * 2 * node.dtype.itemsize
    made = call(text, threads, outer, n, columns, count, block, scratch=apart)
    return NativeKernel(node, [made], room, refuses=True)


def put_along(op: PutAlong, node: Node, threads: int) -> NativeKernel:
    x, indices, _ = node.inputs
    text = _text(PUT, f"uint{8 * x.dtype.itemsize}_t", indices.dtype)
    outer, count, columns = around(indices.shape, op.axis)
    block = columns_for(threads, outer, columns, node.dtype)
    made = call(text, threads, outer, node.shape[op.axis], columns, count, block)
    return NativeKernel(node, [made], inplace=((0,), (), ()), refuses=True)


def _text(mode: int, held: str, index: DType, wide: str = "", apart: bool = False) -> str:
    return with_macros(TEXT, T=held, L=c_type(index), MODE=mode, W=wide or held, APART=int(apart))


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {
    TakeAlong: take_along,
    AddAlong: add_along,
    PutAlong: put_along,
}

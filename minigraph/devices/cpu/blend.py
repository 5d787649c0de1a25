"""Linear interpolation along an axis, and its gradient, in C."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.devices.cpu.take import columns_for, total_type
from minigraph.graph import Node, Op, Shape, around
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.ops.interpolation import Blend, BlendBackward
from minigraph.ops.reduction import FEW

TEXT = Path(__file__).with_name("blend.c").read_text()


def blend(op: Blend, node: Node, threads: int) -> NativeKernel | None:
    return _made(node, node.inputs[0].shape, op.axis, threads, 0)


def blend_backward(op: BlendBackward, node: Node, threads: int) -> NativeKernel | None:
    return _made(node, node.shape, op.axis, threads, 1)


def _made(node: Node, x: Shape, axis: int, threads: int, backward: int) -> NativeKernel | None:
    """Return the kernel for an input, or a gradient for it, of shape `x`."""
    if node.inputs[3].dtype != node.dtype:
        return None
    outer, n, columns = around(x, axis)
    count, held = node.inputs[3].size, c_type(node.dtype)
    # A place has a share in the results of two steps, at an edge in those of two and a half.
    apart = bool(backward) and 3 * count > FEW * n
    wide = total_type(node.dtype) if apart else held
    text = with_macros(TEXT, T=held, W=wide, BACKWARD=backward, APART=int(apart))
    block = columns_for(threads, outer, columns, node.dtype)
    values = threads, outer, n, columns, count, block
    room = threads * n * block * 2 * node.dtype.itemsize if apart else 0
    return NativeKernel(node, [call(text, *values, scratch=apart)], room, refuses=True)


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {
    Blend: blend,
    BlendBackward: blend_backward,
}

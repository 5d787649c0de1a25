"""One-hot vectors in C."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.graph import BFLOAT16, Node, Op
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.jit.small_float import FLOAT16
from minigraph.ops.indexing import OneHot

BITS_OF_1 = {FLOAT16: "0x3c00", BFLOAT16: "0x3f80"}
TEXT = Path(__file__).with_name("one_hot.c").read_text()


def one_hot(op: OneHot, node: Node, threads: int) -> NativeKernel:
    labels = node.inputs[0]
    one = BITS_OF_1.get(node.dtype, "1")
    text = with_macros(TEXT, T=c_type(labels.dtype), R=c_type(node.dtype), ONE=one)
    return NativeKernel(node, [call(text, labels.size, op.size)], refuses=True)


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {OneHot: one_hot}

"""The C kernel of argmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.graph import Node, Op
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.ops.reduction import Argmax

TEXT = Path(__file__).with_name("argmax.c").read_text()


def argmax(op: Argmax, node: Node, threads: int) -> NativeKernel:
    x = node.inputs[0]
    (axis,) = op.axes
    sizes = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    return NativeKernel(node, [call(with_macros(TEXT, T=c_type(x.dtype)), threads, *sizes)])


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {Argmax: argmax}

"""The C kernel of argmax."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.graph import BOOL, Node, Op, around
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.ops.reduction import Argmax

TEXT = Path(__file__).with_name("argmax.c").read_text()


def argmax(op: Argmax, node: Node, threads: int) -> NativeKernel | None:
    x = node.inputs[0]
    sizes = around(x.shape, *op.axes)
    if sizes[1] > np.iinfo(np.int32).max:
        return None
    text = with_macros(TEXT, T=c_type(x.dtype), BOOL=int(x.dtype == BOOL))
    return NativeKernel(node, [call(text, threads, *sizes)])


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {Argmax: argmax}

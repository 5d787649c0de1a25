"""Local response normalisation in C.

oneDNN's keeps a running sum over channels, in which the error of a large channel stays after the
channel has left the window.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.graph import Node, Op
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.ops.normalization import LocalResponseNorm
from minigraph.ops.reduction import FEW

TEXT = Path(__file__).with_name("local_response_norm.c").read_text()


def local_response_norm(op: LocalResponseNorm, node: Node, threads: int) -> NativeKernel:
    images, channels, *sides = node.shape
    held, power = c_type(node.dtype), "powf" if node.dtype.itemsize == 4 else "pow"
    wide = "double" if op.size > FEW else held
    text = with_macros(TEXT, T=held, W=wide, POW=power)
    numbers = struct.unpack("<3q", struct.pack("<3d", op.alpha / op.size, op.beta, op.k))
    sizes = (images, channels, math.prod(sides), op.size)
    return NativeKernel(node, [call(text, threads, *sizes, *numbers)])


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {
    LocalResponseNorm: local_response_norm
}

"""Kernels in C of ops that are neither generated nor oneDNN's, in the order of their texts.

check                what a program asks to be true, with the value that it hands on
cross_entropy        oneDNN has none, and its softmax loses NaN and infinity
local_response_norm  oneDNN's keeps a running sum over channels, in which the error of a large
                     channel stays after the channel has left the window
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

from minigraph.devices.cpu.kernel import KernelCall, KernelTable, NativeKernel, call
from minigraph.graph import Node
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.ops.loss import CrossEntropy, CrossEntropyBackward
from minigraph.ops.normalization import LocalResponseNorm
from minigraph.ops.observation import Check
from minigraph.ops.reduction import FEW

CHECK, CROSS_ENTROPY, LOCAL_RESPONSE_NORM = (
    Path(__file__).with_name(f"{name}.c").read_text()
    for name in ("check", "cross_entropy", "local_response_norm")
)


def check(op: Check, node: Node, threads: int) -> NativeKernel:
    x, condition = node.inputs
    copy = call(CHECK, x.spec.nbytes, condition.size)
    return NativeKernel(node, [copy], inplace=((0,), ()), refuses=True)


def cross_entropy(op: CrossEntropy, node: Node, threads: int) -> NativeKernel:
    logits, labels = node.inputs
    return NativeKernel(node, [_cross_entropy(logits, labels, False, threads)], refuses=True)


def cross_entropy_backward(op: CrossEntropyBackward, node: Node, threads: int) -> NativeKernel:
    _, logits, labels = node.inputs
    calls = [_cross_entropy(logits, labels, True, threads)]
    return NativeKernel(node, calls, inplace=((), (0,), ()), refuses=True)


def _cross_entropy(logits: Node, labels: Node, backward: bool, threads: int) -> KernelCall:
    text = with_macros(
        CROSS_ENTROPY,
        T=c_type(logits.dtype),
        L=c_type(labels.dtype),
        EXP="expf" if logits.dtype.itemsize == 4 else "exp",
        BACKWARD=int(backward),
    )
    return call(text, threads, labels.size, logits.shape[-1])


def local_response_norm(op: LocalResponseNorm, node: Node, threads: int) -> NativeKernel:
    images, channels, *sides = node.shape
    element, power = c_type(node.dtype), "powf" if node.dtype.itemsize == 4 else "pow"
    total = "double" if op.size > FEW else element
    text = with_macros(LOCAL_RESPONSE_NORM, T=element, W=total, POW=power)
    numbers = struct.unpack("<3q", struct.pack("<3d", op.alpha / op.size, op.beta, op.k))
    sizes = (images, channels, math.prod(sides), op.size)
    return NativeKernel(node, [call(text, threads, *sizes, *numbers)])


KERNELS: KernelTable = {
    Check: check,
    CrossEntropy: cross_entropy,
    CrossEntropyBackward: cross_entropy_backward,
    LocalResponseNorm: local_response_norm,
}

"""Cross entropy in C: oneDNN has none, and its softmax loses NaN and infinity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigraph.devices.cpu.kernel import KernelCall, NativeKernel, call
from minigraph.graph import Node, Op
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.ops.loss import CrossEntropy, CrossEntropyBackward

TEXT = Path(__file__).with_name("cross_entropy.c").read_text()


def cross_entropy(op: CrossEntropy, node: Node, threads: int) -> NativeKernel:
    logits, labels = node.inputs
    return NativeKernel(node, [_call(logits, labels, False, threads)], refuses=True)


def cross_entropy_backward(op: CrossEntropyBackward, node: Node, threads: int) -> NativeKernel:
    _, logits, labels = node.inputs
    calls = [_call(logits, labels, True, threads)]
    return NativeKernel(node, calls, inplace=((), (0,), ()), refuses=True)


def _call(logits: Node, labels: Node, backward: bool, threads: int) -> KernelCall:
    text = with_macros(
        TEXT,
        T=c_type(logits.dtype),
        L=c_type(labels.dtype),
        EXP="expf" if logits.dtype.itemsize == 4 else "exp",
        BACKWARD=int(backward),
    )
    return call(text, threads, labels.size, logits.shape[-1])


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {
    CrossEntropy: cross_entropy,
    CrossEntropyBackward: cross_entropy_backward,
}

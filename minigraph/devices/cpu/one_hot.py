"""One-hot vectors in C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.graph import Node, Op
from minigraph.jit.expression import c_type
from minigraph.ops.indexing import OneHot

# Refuses (1) before it writes if a label is out of range.
TEXT = """
int NAME(const int64_t *a, char **slots) {
  const int64_t count = a[0], size = a[1];
  const %(T)s *label = (const %(T)s *)(slots[a[2]] + a[3]);
  %(R)s *y = (%(R)s *)(slots[a[4]] + a[5]);
  for (int64_t i = 0; i < count; i++)
    if (label[i] < 0 || (uint64_t)label[i] >= (uint64_t)size) return 1;
  memset(y, 0, count * size * sizeof(%(R)s));
  for (int64_t i = 0; i < count; i++) y[i * size + (int64_t)label[i]] = 1;
  return 0;
}
"""


def one_hot(op: OneHot, node: Node, threads: int) -> NativeKernel:
    labels = node.inputs[0]
    text = TEXT % {"T": c_type(labels.dtype), "R": c_type(node.dtype)}
    return NativeKernel(node, [call(text, labels.size, op.size)], refuses=True)


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {OneHot: one_hot}

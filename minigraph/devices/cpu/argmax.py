"""The C kernel of argmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.graph import Node, Op
from minigraph.jit.expression import c_type
from minigraph.ops.reduction import Argmax

_ARGMAX = """
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], n = a[2], inner = a[3];
  const %(T)s *x = (const %(T)s *)(slots[a[4]] + a[5]);
  int64_t *y = (int64_t *)(slots[a[6]] + a[7]);
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t u = 0; u < outer * inner; u++) {
    const %(T)s *p = x + u / inner * n * inner + u %% inner;
    int64_t at = 0;
    for (int64_t j = 1; j < n; j++) {
      const %(T)s v = p[j * inner], best = p[at * inner];
      if (v > best || (v != v && best == best)) at = j;
    }
    y[u] = at;
  }
  return 0;
}
"""


def argmax(op: Argmax, node: Node, threads: int) -> NativeKernel:
    x = node.inputs[0]
    (axis,) = op.axes
    sizes = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    return NativeKernel(node, [call(_ARGMAX % {"T": c_type(x.dtype)}, threads, *sizes)])


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {Argmax: argmax}

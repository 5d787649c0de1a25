"""Argmax in CUDA."""

from __future__ import annotations

from minigraph.devices.cuda.template import (
    EACH_ROW,
    Kernels,
    Written,
    each_element,
    each_row,
    element,
    warps_for,
)
from minigraph.graph import Node, around
from minigraph.ops.reduction import Argmax

# The first of the largest of n elements, where a NaN is larger than all.
BETTER = """
struct NAME_best {
  %(W)s v;
  int64_t at;
};
static NAME_best NAME_better(NAME_best a, NAME_best b) {
  const bool nan = b.v != b.v && a.v == a.v, equal = a.v == b.v || (a.v != a.v && b.v != b.v);
  return b.at >= 0 && (a.at < 0 || b.v > a.v || nan || (equal && b.at < a.at)) ? b : a;
}
"""

# A warp does a row, or a block where it is long.  A thread without an element has none at -1.
TEXT = (
    BETTER
    + EACH_ROW
    + """
    const int64_t n = a.w[%(sizes)d + 1];
    const %(T)s *p = (const %(T)s *)mg_global(a.w[0]) + row * n;
    NAME_best best = {0, -1};
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
      best = NAME_better(best, NAME_best{(%(W)s)%(load)s(p[j]), j});
    for (int d = 16; d > 0; d /= 2) {
      const %(W)s v = __shfl_xor_sync(0xffffffffu, best.v, d);
      const int64_t at = __shfl_xor_sync(0xffffffffu, best.at, d);
      best = NAME_better(best, NAME_best{v, at});
    }
    if (%(warps)d > 1) {
      __shared__ NAME_best of_warp[%(warps)d];
      if (threadIdx.x %% 32 == 0) of_warp[threadIdx.x / 32] = best;
      __syncthreads();
      for (int k = 0; k < %(warps)d; k++) best = NAME_better(best, of_warp[k]);
      __syncthreads();
    }
    if (threadIdx.x == 0) ((int64_t *)mg_global(a.w[1]))[row] = best.at;
  }
}
"""
)

# Of an axis that later ones follow: a thread does what belongs to one place of those.
APART = """
    const %(I)s n = a.w[%(sizes)d + 1], inner = a.w[%(sizes)d + 2];
    const %(T)s *p = (const %(T)s *)mg_global(a.w[0]) + (e / inner * n * inner + e %% inner);
    %(W)s best = %(load)s(p[0]);
    %(I)s at = 0;
    for (%(I)s j = 1; j < n; j++) {
      const %(W)s v = %(load)s(p[j * inner]);
      if (v > best || (v != v && best == best)) best = v, at = j;
    }
    ((int64_t *)mg_global(a.w[1]))[e] = at;
  }
}
"""


def argmax(op: Argmax, node: Node) -> Written:
    x = node.inputs[0]
    outer, n, inner = around(x.shape, *op.axes)
    fill = {**element(x.dtype)}
    # Threads that share a row of few elements would have nothing to do.
    if inner == 1 and n > FEW:
        return Written(each_row(node, TEXT, outer, warps_for(n), (n,), **fill))
    return Written(each_element(node, APART, outer * inner, (n, inner), **fill))


FEW = 8
KERNELS: Kernels = {Argmax: argmax}

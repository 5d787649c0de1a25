"""Sorting, places in sorted rows, and the largest element of a row, in CUDA."""

from __future__ import annotations

import math

from minigraph.devices.cuda.template import (
    EACH_ROW,
    SHORT_ROW,
    Kernels,
    WrittenKernel,
    each_element,
    each_row,
    element,
    threads_for,
)
from minigraph.graph import Node, around
from minigraph.ops.ordering import Argsort, Searchsorted
from minigraph.ops.reduction import Argmax

# NaN is larger than any number.
LESS = "(%(p)s < %(q)s || (%(q)s != %(q)s && %(p)s == %(p)s))"

# A thread does an element of x [outer, n, inner]: it counts those of its row that come before it.
ARGSORT = """
    const %(I)s n = a.w[%(sizes)d + 1], inner = a.w[%(sizes)d + 2], few = a.w[%(sizes)d + 3];
    const %(I)s mine = e / inner %% n, outer = e / inner / n;
    const %(T)s *row = (const %(T)s *)mg_global(a.w[0]) + (outer * n * inner + e %% inner);
    const %(W)s p = %(load)s(row[mine * inner]);
    %(I)s before = 0;
    for (%(I)s j = 0; j < n; j++) {
      const %(W)s q = %(load)s(row[j * inner]);
      const bool first = BEFORE, second = AFTER;
      before += first || (!second && j < mine);
    }
    if (before < few)
      ((int64_t *)mg_global(a.w[1]))[(outer * few + before) * inner + e %% inner] = mine;
  }
}
"""

# A thread does an element of v [rows, m]; x is [rows, n].
SEARCHSORTED = """
    const %(I)s n = a.w[%(sizes)d + 1], m = a.w[%(sizes)d + 2];
    const %(T)s *row = (const %(T)s *)mg_global(a.w[0]) + e / m * n;
    const %(W)s p = %(load)s(((const %(T)s *)mg_global(a.w[1]))[e]);
    %(I)s low = 0, high = n;
    while (low < high) {
      const %(I)s middle = low + (high - low) / 2;
      const %(W)s q = %(load)s(row[middle]);
      if (BEHIND)
        low = middle + 1;
      else
        high = middle;
    }
    ((int64_t *)mg_global(a.w[2]))[e] = low;
  }
}
"""


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
ARGMAX_ALONG = (
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
ARGMAX_ACROSS = """
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


def _less(p: str, q: str) -> str:
    return LESS % {"p": p, "q": q}


def argsort(op: Argsort, node: Node) -> WrittenKernel:
    (x,) = node.inputs
    _, n, inner = around(x.shape, op.axis)
    # An element q comes before p where it is less, or larger if the largest are first.
    pair = ("p", "q") if op.descending else ("q", "p")
    text = ARGSORT.replace("BEFORE", _less(*pair)).replace("AFTER", _less(*pair[::-1]))
    sizes = (n, inner, op.count)
    return WrittenKernel(each_element(node, text, x.size, sizes, **element(x.dtype)))


def searchsorted(op: Searchsorted, node: Node) -> WrittenKernel:
    x, v = node.inputs
    behind = f"!{_less('p', 'q')}" if op.right else _less("q", "p")
    sizes = (x.shape[-1], math.prod(v.shape[-1:]))
    text = SEARCHSORTED.replace("BEHIND", behind)
    return WrittenKernel(each_element(node, text, node.size, sizes, **element(x.dtype)))


def argmax(op: Argmax, node: Node) -> WrittenKernel:
    x = node.inputs[0]
    outer, n, inner = around(x.shape, *op.axes)
    fill = {**element(x.dtype)}
    if inner == 1 and n > SHORT_ROW:
        return WrittenKernel(each_row(node, ARGMAX_ALONG, outer, threads_for(n), (n,), **fill))
    return WrittenKernel(each_element(node, ARGMAX_ACROSS, outer * inner, (n, inner), **fill))


KERNELS: Kernels = {Argsort: argsort, Searchsorted: searchsorted, Argmax: argmax}

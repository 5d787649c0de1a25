"""Cumulative sums and products in CUDA."""

from __future__ import annotations

import numpy as np

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
from minigraph.ops.cumulative import CumulativeProduct, CumulativeSum
from minigraph.ops.elementwise import kind

# A warp does a row, or a block where it is long: so many elements at once, of which each thread has
# one.  Sums of 1, 2, 4, ... elements are joined; what stands before them is added last.
TEXT = (
    EACH_ROW
    + """
    const int64_t n = a.w[%(sizes)d + 1];
    const %(T)s *p = (const %(T)s *)mg_global(a.w[0]) + row * n;
    %(T)s *q = (%(T)s *)mg_global(a.w[1]) + row * n;
    %(S)s before = %(none)s;
    for (int64_t first = 0; first < n; first += blockDim.x) {
      const int64_t j = first + threadIdx.x, at = %(at)s;
      %(S)s mine = j < n ? (%(S)s)%(load)s(p[at]) : %(none)s;
      for (int d = 1; d < 32; d *= 2) {
        const %(S)s other = __shfl_up_sync(0xffffffffu, mine, d);
        if (threadIdx.x %% 32 >= d) mine = other + mine;
      }
      %(S)s after = before;
      if (%(warps)d > 1) {
        __shared__ %(S)s of_warp[%(warps)d];
        if (threadIdx.x %% 32 == 31) of_warp[threadIdx.x / 32] = mine;
        __syncthreads();
        for (int k = 0; k < %(warps)d; k++) {
          if (k == threadIdx.x / 32) before = after;
          after += of_warp[k];
        }
        __syncthreads();
      } else {
        after += __shfl_sync(0xffffffffu, mine, 31);
      }
      if (j < n) q[at] = %(store)s((%(W)s)(before + mine));
      before = after;
    }
  }
}
"""
)

# A thread does a row, or what belongs to one place of the later axes, one after the other.
ONE_BY_ONE = """
    const %(I)s n = a.w[%(sizes)d + 1], inner = a.w[%(sizes)d + 2];
    const %(I)s begin = e / inner * n * inner + e %% inner;
    const %(T)s *p = (const %(T)s *)mg_global(a.w[0]) + begin;
    %(T)s *q = (%(T)s *)mg_global(a.w[1]) + begin;
    %(S)s total = %(none)s;
    for (%(I)s j = 0; j < n; j++) {
      const %(I)s at = (%(at)s) * inner;
      total = total %(operator)s %(load)s(p[at]);
      q[at] = %(store)s((%(W)s)total);
    }
  }
}
"""


def cumulative_sum(op: CumulativeSum, node: Node) -> WrittenKernel | None:
    # In float64 a sum of some elements may overflow where that of all before does not.
    parted = node.dtype != np.float64
    none = "-0.0" if kind(node.dtype) == "f" else "0"
    return _kernel(op.axis, node, "+", none, parted, "n - 1 - j" if op.reverse else "j")


def cumulative_product(op: CumulativeProduct, node: Node) -> WrittenKernel | None:
    return _kernel(op.axis, node, "*", "1", False, "j")


def _kernel(
    axis: int, node: Node, operator: str, none: str, parted: bool, at: str
) -> WrittenKernel | None:
    if kind(node.dtype) == "b":
        return None
    outer, n, inner = around(node.shape, axis)
    fill = {**element(node.dtype), "operator": operator, "none": none, "at": at}
    fill["S"] = "double" if kind(node.dtype) == "f" else fill["W"]
    if inner == 1 and n > SHORT_ROW and parted:
        launch = each_row(node, TEXT, outer, threads_for(n), (n,), **fill)
    else:
        launch = each_element(node, ONE_BY_ONE, outer * inner, (n, inner), **fill)
    return WrittenKernel(launch, inplace=((0,),))


KERNELS: Kernels = {CumulativeSum: cumulative_sum, CumulativeProduct: cumulative_product}

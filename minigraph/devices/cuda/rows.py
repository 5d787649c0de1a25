"""Sorting, places in sorted rows, the largest, cumulative sums and cross entropies, in CUDA."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from minigraph.devices.cuda.kernel import CudaKernel, Range
from minigraph.devices.cuda.template import (
    SHORT_ROW,
    Kernels,
    element,
    threads_for,
    written_kernel,
)
from minigraph.graph import Node, Op, around
from minigraph.jit.expression import c_type
from minigraph.ops.cumulative import CumulativeProduct, CumulativeSum, Recurrence
from minigraph.ops.elementwise import kind
from minigraph.ops.loss import CrossEntropy, CrossEntropyBackward
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
ARGMAX_ALONG = """
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
"""

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
"""


# A warp does a row, or a block where it is long: so many elements at once, of which each thread has
# one.  Sums of 1, 2, 4, ... elements are joined; what stands before them is added last.
CUMULATIVE = """
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
"""

# A thread does a row, or what belongs to one place of the later axes, one after the other.
ONE_BY_ONE = """
    const %(I)s n = a.w[%(sizes)d + 1], inner = a.w[%(sizes)d + 2];
    const %(I)s begin = e / inner * n * inner + e %% inner;
    const %(T)s *p = (const %(T)s *)mg_global(a.w[0]) + begin;
    const %(T)s *f = (const %(T)s *)mg_global(a.w[%(of)s - 1]) + begin;
    %(T)s *q = (%(T)s *)mg_global(a.w[%(of)s]) + begin;
    %(S)s total = %(none)s;
    for (%(I)s j = 0; j < n; j++) {
      const %(I)s at = (%(at)s) * inner;
      total = %(join)s;
      q[at] = %(store)s((%(W)s)total);
    }
"""


def _less(p: str, q: str) -> str:
    return LESS % {"p": p, "q": q}


def argsort(op: Argsort, node: Node) -> CudaKernel:
    (x,) = node.inputs
    _, n, inner = around(x.shape, op.axis)
    # An element q comes before p where it is less, or larger if the largest are first.
    pair = ("p", "q") if op.descending else ("q", "p")
    text = ARGSORT.replace("BEFORE", _less(*pair)).replace("AFTER", _less(*pair[::-1]))
    sizes = (n, inner, op.count)
    return written_kernel(node, text, element(x.dtype), x.size, sizes)


def searchsorted(op: Searchsorted, node: Node) -> CudaKernel:
    x, v = node.inputs
    behind = f"!{_less('p', 'q')}" if op.right else _less("q", "p")
    sizes = (x.shape[-1], math.prod(v.shape[-1:]))
    text = SEARCHSORTED.replace("BEHIND", behind)
    return written_kernel(node, text, element(x.dtype), node.size, sizes)


def argmax(op: Argmax, node: Node) -> CudaKernel:
    x = node.inputs[0]
    outer, n, inner = around(x.shape, *op.axes)
    fill = {**element(x.dtype)}
    if inner == 1 and n > SHORT_ROW:
        return written_kernel(node, ARGMAX_ALONG, fill, outer, (n,), threads_for(n), BETTER)
    return written_kernel(node, ARGMAX_ACROSS, fill, outer * inner, (n, inner))


def cumulative_sum(op: CumulativeSum, node: Node) -> CudaKernel | None:
    # In float64 a sum of some elements may overflow where that of all before does not.
    parted = node.dtype != np.float64
    none = "-0.0" if kind(node.dtype) == "f" else "0"
    return _cumulative(op.axis, node, "+", none, parted, "n - 1 - j" if op.reverse else "j")


def cumulative_product(op: CumulativeProduct, node: Node) -> CudaKernel | None:
    return _cumulative(op.axis, node, "*", "1", False, "j")


def recurrence(op: Recurrence, node: Node) -> CudaKernel | None:
    at = "n - 1 - j" if op.reverse else "j"
    return _cumulative(op.axis, node, "+", "0", False, at, " + inner" if op.reverse else "")


def _cumulative(
    axis: int,
    node: Node,
    operator: str,
    none: str,
    parted: bool,
    at: str,
    factor: str | None = None,
) -> CudaKernel | None:
    """Return the kernel that joins each element with what is made of all before it.

    factor  of a recurrence: how far from an element its factor is
    """
    if kind(node.dtype) == "b":
        return None
    outer, n, inner = around(node.shape, axis)
    fill = {**element(node.dtype), "none": none, "at": at, "of": str(len(node.inputs))}
    x = f"{fill['load']}(p[at])"
    fill["join"] = f"total {operator} {x}"
    if factor is not None:
        fill["join"] = f"j ? {x} + {fill['load']}(f[at{factor}]) * total : {x}"
    fill["S"] = "double" if kind(node.dtype) == "f" else fill["W"]
    if inner == 1 and n > SHORT_ROW and parted:
        return written_kernel(node, CUMULATIVE, fill, outer, (n,), threads_for(n), inplace=((0,),))
    inplace = ((0,), ())[: len(node.inputs)]
    return written_kernel(node, ONE_BY_ONE, fill, outer * inner, (n, inner), inplace=inplace)


# ---------------------------------------------------------------- cross entropies

# The cross entropy of a softmax, and its gradient: a thread does a row, a warp where rows are
# longer, or a block.  Sums are taken in pieces of float32 that are added up in double, so the error
# does not grow with the length.
#
# All threads of a row get the largest of its n elements, NaN if there is one; and the sum of
# exp(p - peak).
ROW = """
static %(W)s NAME_larger(%(W)s v, %(W)s w) { return w > v || w != w ? w : v; }
static %(W)s NAME_peak(const %(T)s *p, int64_t n) {
  %(W)s peak = -INFINITY;
  for (int64_t j = threadIdx.x; j < n; j += blockDim.x) peak = NAME_larger(peak, %(load)s(p[j]));
  for (int d = %(lanes)d / 2; d > 0; d /= 2)
    peak = NAME_larger(peak, __shfl_xor_sync(0xffffffffu, peak, d));
  if (%(warps)d > 1) {
    __shared__ %(W)s of_warp[%(warps)d];
    if (threadIdx.x %% 32 == 0) of_warp[threadIdx.x / 32] = peak;
    __syncthreads();
    for (int k = 0; k < %(warps)d; k++) peak = NAME_larger(peak, of_warp[k]);
    __syncthreads();
  }
  return peak;
}
static double NAME_sum(const %(T)s *p, int64_t n, %(W)s peak) {
  double total = 0;
  for (int64_t j = threadIdx.x; j < n;) {
    %(W)s part = 0;
    for (int k = 0; k < 32 && j < n; k++, j += blockDim.x) part += exp%(f)s(%(load)s(p[j]) - peak);
    total += part;
  }
  for (int d = %(lanes)d / 2; d > 0; d /= 2) total += __shfl_xor_sync(0xffffffffu, total, d);
  if (%(warps)d > 1) {
    __shared__ double of_warp[%(warps)d];
    if (threadIdx.x %% 32 == 0) of_warp[threadIdx.x / 32] = total;
    __syncthreads();
    total = 0;
    for (int k = 0; k < %(warps)d; k++) total += of_warp[k];
    __syncthreads();
  }
  return total;
}
"""

# A negative label is a large one.
LABEL = """
    const int64_t n = a.w[%(sizes)d + 1];
    const %(L)s label = ((const %(L)s *)mg_global(a.w[%(labels)d]))[row];
    const bool outside = (uint64_t)label >= (uint64_t)n;
    if (outside && threadIdx.x == 0) *(int *)mg_global(a.w[%(flag)d]) = 1;
"""

CROSS_ENTROPY = (
    LABEL
    + """
    const %(T)s *p = (const %(T)s *)mg_global(a.w[0]) + row * n;
    const %(W)s peak = NAME_peak(p, n), shift = log%(f)s((%(W)s)NAME_sum(p, n, peak));
    if (threadIdx.x == 0)
      ((%(T)s *)mg_global(a.w[2]))[row] =
          %(store)s(outside ? NAN : -((%(load)s(p[label]) - peak) - shift));
"""
)

# May write where it reads: a thread reads an element for the last time just before it writes it.
CROSS_ENTROPY_BACKWARD = (
    LABEL
    + """
    const %(T)s *p = (const %(T)s *)mg_global(a.w[1]) + row * n;
    %(T)s *q = (%(T)s *)mg_global(a.w[3]) + row * n;
    const %(W)s d = %(load)s(((const %(T)s *)mg_global(a.w[0]))[row]);
    const %(W)s peak = NAME_peak(p, n), total = NAME_sum(p, n, peak);
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
      const bool chosen = !outside && j == (int64_t)label;
      q[j] = %(store)s((chosen ? -d : 0) + exp%(f)s(%(load)s(p[j]) - peak) / total * d);
    }
"""
)


def _cross_entropy(
    text: str, labels: int, inplace: Sequence[Sequence[int]], op: Op, node: Node
) -> CudaKernel:
    """Return the kernel of a text; the labels are operand `labels`, behind the logits."""
    logits, label = node.inputs[labels - 1 : labels + 1]
    n = logits.shape[-1]
    fill = {**element(logits.dtype), "L": c_type(label.dtype), "labels": labels}
    sizes, threads, valid = (n,), threads_for(n), Range(labels, 0, n)
    return written_kernel(
        node, text, fill, label.size, sizes, threads, ROW, range=valid, inplace=inplace
    )


KERNELS: Kernels = {
    Argsort: argsort,
    Searchsorted: searchsorted,
    Argmax: argmax,
    CumulativeSum: cumulative_sum,
    CumulativeProduct: cumulative_product,
    Recurrence: recurrence,
    CrossEntropy: partial(_cross_entropy, CROSS_ENTROPY, 1, ()),
    CrossEntropyBackward: partial(_cross_entropy, CROSS_ENTROPY_BACKWARD, 2, ((), (0,), ())),
}

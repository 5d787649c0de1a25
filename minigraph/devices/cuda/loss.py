"""The cross entropy of a softmax, and its gradient, in CUDA.

A thread does a row, a warp where rows are longer, or a block.  Sums are taken in pieces of float32
that are added up in double, so the error does not grow with the length.
"""

from __future__ import annotations

from functools import partial

from minigraph.devices.cuda.kernel import CudaKernel, Range
from minigraph.devices.cuda.template import Inplace, Kernels, each_row, element, threads_for
from minigraph.graph import Node, Op
from minigraph.jit.expression import c_type
from minigraph.ops.loss import CrossEntropy, CrossEntropyBackward

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


def _kernel(text: str, labels: int, inplace: Inplace, op: Op, node: Node) -> CudaKernel:
    """Return the kernel of a text; the labels are operand `labels`, behind the logits."""
    logits, label = node.inputs[labels - 1 : labels + 1]
    n = logits.shape[-1]
    fill = {**element(logits.dtype), "L": c_type(label.dtype), "labels": labels}
    checks, threads = Range(labels, 0, n), threads_for(n)
    return each_row(node, text, fill, label.size, threads, (n,), ROW, checks, inplace)


KERNELS: Kernels = {
    CrossEntropy: partial(_kernel, CROSS_ENTROPY, 1, ()),
    CrossEntropyBackward: partial(_kernel, CROSS_ENTROPY_BACKWARD, 2, ((), (0,), ())),
}

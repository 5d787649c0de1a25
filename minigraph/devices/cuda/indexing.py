"""Gathers and scatters along an axis, and one-hot vectors, in CUDA.

Where several indices may name one element of the result, a thread or a block looks through the
indices for those of its own, so every run gives the same bits.
"""

from __future__ import annotations

from typing import Any

from minigraph.devices.cuda.kernel import CudaKernel, Range
from minigraph.devices.cuda.template import (
    MOST_THREADS,
    THREADS,
    WARP,
    Kernels,
    element,
    written_kernel,
)
from minigraph.graph import Node, around
from minigraph.jit.expression import c_type
from minigraph.ops.indexing import AddAlong, OneHot, PutAlong, Take, TakeAlong, TakeBackward

# A thread does an element of y [outer, count, columns]; x is [outer, n, columns].  What is moved,
# whatever its type, is moved as unsigned integers, or as vectors where rows are made of them.
GATHER = """
    const %(I)s n = a.w[%(sizes)d + 1], count = a.w[%(sizes)d + 2], columns = a.w[%(sizes)d + 3];
    const %(L)s index = ((const %(L)s *)mg_global(a.w[1]))[%(place)s];
    const int64_t at = %(wraps)d && index < 0 ? (int64_t)index + (int64_t)n : (int64_t)index;
    const bool inside = (uint64_t)at < (uint64_t)n;
    if (!inside) *(int *)mg_global(a.w[%(flag)d]) = 1;
    const %(T)s *x = (const %(T)s *)mg_global(a.w[0]);
    %(T)s y = {};
    if (inside) y = x[(e / columns / count * n + (%(I)s)at) * columns + e %% columns];
    ((%(T)s *)mg_global(a.w[2]))[e] = y;
"""

# A block does a row of dx [outer, n, columns].  Each of its warps looks for the row's number in a
# stretch of the indices and adds what it finds in their order, so many columns at once as it has
# sums; the sums of the warps are added in order too, so every run gives the same bits.  A warp that
# has found nothing need not look again.
BACKWARD = """
    const int64_t columns = a.w[%(sizes)d + 1], n = a.w[%(sizes)d + 2];
    const int64_t indices = a.w[%(sizes)d + 3], outer = row / n, mine = row - outer * n;
    const %(T)s *dy = (const %(T)s *)mg_global(a.w[0]) + outer * indices * columns;
    const %(L)s *index = (const %(L)s *)mg_global(a.w[1]);
    %(T)s *dx = (%(T)s *)mg_global(a.w[2]) + row * columns;
    const int warp = threadIdx.x / 32, lane = threadIdx.x %% 32;
    const int64_t stretch = (indices + %(block)d - 1) / %(block)d * 32;
    const int64_t begin = warp * stretch, end = min(begin + stretch, indices);
    __shared__ %(S)s of_warp[%(warps)d][32];
    bool found = true;
    for (int64_t first = 0; first < columns; first += %(sums)d * 32) {
      %(S)s sum[%(sums)d] = {};
      bool again = false;
      for (int64_t k = begin; found && k < end; k += 32) {
        int64_t at = -1;
        if (k + lane < end) {
          const %(L)s given = index[k + lane];
          at = %(wraps)d && given < 0 ? (int64_t)given + n : (int64_t)given;
          if ((uint64_t)at >= (uint64_t)n) *(int *)mg_global(a.w[%(flag)d]) = 1;
        }
        uint32_t those = __ballot_sync(0xffffffffu, at == mine);
        again = again || those;
        while (those) { /* load four rows at once, if there are so many, then add */
          %(T)s part[4][%(sums)d];
          #pragma unroll
          for (int m = 0; m < 4; m++) {
            const bool there = those != 0;
            const %(T)s *p = dy + (k + (there ? __ffs(those) - 1 : 0)) * columns + first + lane;
            those &= those - 1;
            #pragma unroll
            for (int u = 0; u < %(sums)d; u++)
              part[m][u] = there && first + lane + 32 * u < columns ? p[32 * u] : (%(T)s)0;
          }
          #pragma unroll
          for (int m = 0; m < 4; m++)
            #pragma unroll
            for (int u = 0; u < %(sums)d; u++) sum[u] += %(load)s(part[m][u]);
        }
      }
      found = again;
      if (!__syncthreads_or(found)) { /* no index names the row */
        for (int64_t j = first + threadIdx.x; j < columns; j += %(block)d) dx[j] = 0;
        break;
      }
      #pragma unroll
      for (int u = 0; u < %(sums)d; u++) {
        of_warp[warp][lane] = sum[u];
        __syncthreads();
        if (warp == 0 && first + lane + 32 * u < columns) {
          %(S)s total = of_warp[0][lane];
          for (int k = 1; k < %(warps)d; k++) total += of_warp[k][lane];
          dx[first + lane + 32 * u] = %(store)s((%(W)s)total);
        }
        __syncthreads();
      }
    }
"""
VECTOR = 16  # bytes
SUMS = 4  # of a thread: more take registers that a block of all threads does not have


# A thread does an element of the result [outer, n, columns]; indices are [outer, count, columns].
SEARCH = """
    const %(I)s n = a.w[%(sizes)d + 1], count = a.w[%(sizes)d + 2], columns = a.w[%(sizes)d + 3];
    const int64_t mine = e / columns %% n;
    const %(I)s begin = e / columns / n * count * columns + e %% columns;
    const %(L)s *index = (const %(L)s *)mg_global(a.w[1]);
    %(begin)s
    for (%(I)s i = 0; i < count; i++) {
      const %(L)s given = index[begin + i * columns];
      const int64_t at = %(wraps)d && given < 0 ? (int64_t)given + (int64_t)n : (int64_t)given;
      if ((uint64_t)at >= (uint64_t)n) *(int *)mg_global(a.w[%(flag)d]) = 1;
      if (at == mine) %(found)s;
    }
    %(end)s;
"""


# A thread does an element.  A negative label is a large one.
ONE_HOT = """
    const uint64_t n = a.w[%(sizes)d + 1];
    const uint64_t label = ((const %(L)s *)mg_global(a.w[0]))[e / (%(I)s)n];
    if (label >= n) *(int *)mg_global(a.w[%(flag)d]) = 1;
    ((%(T)s *)mg_global(a.w[1]))[e] = %(store)s((%(W)s)(label == e %% (%(I)s)n));
"""


def take(op: Take, node: Node) -> CudaKernel:
    x, indices = node.inputs
    _, n, columns = around(x.shape, op.axis)
    size = x.dtype.itemsize
    unit = size if columns * size % VECTOR else VECTOR
    sizes = (n, indices.size, columns * size // unit)
    return _gather(node, sizes, unit, not op.tokens, "e / columns %% count")


def take_along(op: TakeAlong, node: Node) -> CudaKernel:
    x, _ = node.inputs
    _, n, columns = around(x.shape, op.axis)
    sizes = n, node.shape[op.axis], columns
    return _gather(node, sizes, x.dtype.itemsize, not op.labels, "e")


def _gather(
    node: Node, sizes: tuple[int, int, int], unit: int, wraps: bool, place: str
) -> CudaKernel:
    """Return a gather of `unit` bytes a thread; the index of an element lies at `place`.

    sizes  n, count, and columns in such units
    """
    n, *_ = sizes
    held = "mg_vector<uint32_t, 4>" if unit == VECTOR else f"uint{8 * unit}_t"
    fill = {"T": held, "L": c_type(node.inputs[1].dtype), "wraps": wraps}
    text = GATHER.replace("%(place)s", place)
    valid, alignment = Range(1, -n if wraps else 0, n), unit if unit == VECTOR else 1
    count = node.spec.nbytes // unit
    return written_kernel(node, text, fill, count, sizes, range=valid, alignment=alignment)


def take_backward(op: TakeBackward, node: Node) -> CudaKernel:
    dy, indices = node.inputs
    outer, n, columns = around(op.shape, op.axis)
    fill: dict[str, Any] = {**element(dy.dtype), "L": c_type(indices.dtype), "wraps": not op.tokens}
    fill["sums"] = min(SUMS, -(-columns // WARP))
    threads = THREADS if indices.size <= MOST_THREADS else MOST_THREADS
    sizes = (columns, n, indices.size)
    valid = Range(1, 0 if op.tokens else -n, n)
    return written_kernel(node, BACKWARD, fill, outer * n, sizes, threads, range=valid)


def add_along(op: AddAlong, node: Node) -> CudaKernel:
    fill = {
        **element(node.dtype),
        "begin": "%(S)s sum = 0;",
        "found": "sum += %(load)s(((const %(T)s *)mg_global(a.w[0]))[begin + i * columns])",
        "end": "((%(T)s *)mg_global(a.w[2]))[e] = %(store)s((%(W)s)sum)",
    }
    return _search(node, op.axis, fill, not op.labels)


def put_along(op: PutAlong, node: Node) -> CudaKernel:
    fill = {
        "T": f"uint{8 * node.dtype.itemsize}_t",
        "begin": "%(T)s value = ((const %(T)s *)mg_global(a.w[0]))[e];",
        "found": "value = ((const %(T)s *)mg_global(a.w[2]))[begin + i * columns]",
        "end": "((%(T)s *)mg_global(a.w[3]))[e] = value",
    }
    return _search(node, op.axis, fill)


def _search(node: Node, axis: int, fill: dict[str, Any], wraps: bool = True) -> CudaKernel:
    """Return a kernel in which each element looks for itself among the indices."""
    indices = node.inputs[1]
    _, n, columns = around(node.shape, axis)
    text = SEARCH
    for part in ("begin", "found", "end"):
        text = text.replace(f"%({part})s", fill.pop(part))
    fill |= {"L": c_type(indices.dtype), "wraps": wraps}
    sizes = n, indices.shape[axis], columns
    valid = Range(1, -n if wraps else 0, n)
    return written_kernel(node, text, fill, node.size, sizes, range=valid)


def one_hot(op: OneHot, node: Node) -> CudaKernel:
    (labels,) = node.inputs
    fill = {**element(node.dtype), "L": c_type(labels.dtype)}
    valid = Range(0, 0, op.size)
    return written_kernel(node, ONE_HOT, fill, node.size, (op.size,), range=valid)


KERNELS: Kernels = {
    OneHot: one_hot,
    Take: take,
    TakeBackward: take_backward,
    TakeAlong: take_along,
    AddAlong: add_along,
    PutAlong: put_along,
}

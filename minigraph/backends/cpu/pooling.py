"""Max pooling in C: oneDNN's passes over NaN, and takes -3.4e38 for -inf.

A thread does whole images.  For each row of the output it goes through the window, and for each
place in it along the row, so that the innermost loop is a choice between vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigraph.backends.cpu.native import NativeKernel, call
from minigraph.dtypes import DType
from minigraph.graph import Node, Op
from minigraph.jit.body import limits
from minigraph.jit.expression import c_type
from minigraph.ops.pooling import MaxPool2d, MaxPool2dBackward, Pooling
from minigraph.spec import Shape

# The argument block: threads, images, h, w, rows, columns, the padding before h and w, then the
# operands.  Window and stride are part of the text: strided loads become vectors and shuffles.
OPEN = """
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], images = a[1], h = a[2], w = a[3], rows = a[4], columns = a[5];
  const int64_t r = %(r)d, s = %(s)d, down = %(down)d, across = %(across)d;
  const int64_t top = a[6], left = a[7];
  (void)h; (void)threads;
"""

FORWARD = (
    OPEN
    + """
  const %(T)s *x = (const %(T)s *)(slots[a[8]] + a[9]);
  %(T)s *y = (%(T)s *)(slots[a[10]] + a[11]);
  %(P)s *place = (%(P)s *)(slots[a[12]] + a[13]);
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t image = 0; image < images; image++)
    for (int64_t i = 0; i < rows; i++) {
      %(T)s *best = y + (image * rows + i) * columns;
      int32_t at[columns]; /* as wide as most elements, so that both are vectors of one length */
      int begun = 0; /* a window may begin in the padding: start with its first pixel */
      for (int64_t p = 0; p < r; p++) {
        const int64_t row = i * down - top + p;
        if (row < 0 || row >= h) continue;
        const %(T)s *from = x + (image * h + row) * w - left;
        for (int64_t q = 0; q < s; q++) {
          int64_t first = left > q ? (left - q + across - 1) / across : 0;
          int64_t last = w + left - q > 0 ? (w + left - q - 1) / across + 1 : 0;
          if (last > columns) last = columns;
          if (!begun) {
            for (int64_t j = 0; j < columns; j++) {
              best[j] = %(lowest)s;
              const int64_t skipped = j * across < left ? left - j * across : 0;
              at[j] = p * s + skipped;
            }
            begun = 1;
          }
          #pragma GCC ivdep
          for (int64_t j = first; j < last; j++) {
            const %(T)s v = from[j * across + q];
            const int better = v > best[j] || (v != v && best[j] == best[j]);
            best[j] = better ? v : best[j];
            at[j] = better ? (int32_t)(p * s + q) : at[j];
          }
        }
      }
      %(P)s *kept = place + (image * rows + i) * columns;
      for (int64_t j = 0; j < columns; j++) kept[j] = at[j];
    }
  return 0;
}
"""
)

BACKWARD = (
    OPEN
    + """
  const %(T)s *dy = (const %(T)s *)(slots[a[8]] + a[9]);
  const %(P)s *place = (const %(P)s *)(slots[a[10]] + a[11]);
  %(T)s *dx = (%(T)s *)(slots[a[12]] + a[13]);
  (void)r;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t image = 0; image < images; image++) {
    %(T)s *to = dx + image * h * w;
    memset(to, 0, h * w * sizeof(%(T)s));
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < columns; j++) {
        const int64_t o = (image * rows + i) * columns + j, at = place[o];
        to[(i * down - top + at / s) * w + j * across - left + at %% s] += dy[o];
      }
  }
  return 0;
}
"""
)


def _kernel(
    text: str,
    node: Node,
    pooling: Pooling,
    x: Shape,
    y: Shape,
    dtypes: tuple[DType, DType],
    threads: int,
) -> NativeKernel:
    held, place = dtypes
    fill: dict[str, object] = {
        "T": c_type(held),
        "P": c_type(place),
        "lowest": limits(held)["lowest"],
    }
    fill |= zip(("r", "s", "down", "across"), (*pooling.window, *pooling.stride), strict=True)
    (top, _), (left, _) = pooling.padding
    sizes = (threads, x[0] * x[1], *x[2:], *y[2:])
    made = call(text % fill, *sizes, top, left)
    return NativeKernel(node, [made])


def max_pool2d(op: MaxPool2d, node: Node, threads: int) -> NativeKernel:
    y, place = node.specs
    x = node.inputs[0].shape
    return _kernel(FORWARD, node, op.pooling, x, y.shape, (y.dtype, place.dtype), threads)


def max_pool2d_backward(op: MaxPool2dBackward, node: Node, threads: int) -> NativeKernel:
    dy, place = node.inputs
    dtypes = (dy.dtype, place.dtype)
    return _kernel(BACKWARD, node, op.pooling, node.shape, dy.shape, dtypes, threads)


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {
    MaxPool2d: max_pool2d,
    MaxPool2dBackward: max_pool2d_backward,
}

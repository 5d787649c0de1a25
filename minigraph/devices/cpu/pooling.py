"""Max pooling in C: oneDNN's passes over NaN, and takes -3.4e38 for -inf.

Of images [n, c, h, w] a thread does whole planes.  For each row of the output it goes through the
window, and for each place in it along the row, so that the innermost loop is a choice between
vectors.  In the other layouts of `minigraph.ops.layout` the lanes of a pixel are the vectors, and a
thread does rows of the output, window by window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.graph import DType, Node, Op, Shape
from minigraph.jit.c.body import limits
from minigraph.jit.expression import c_type
from minigraph.ops.layout import LaidOut
from minigraph.ops.pooling import MaxPool2d, MaxPool2dBackward, Pooling

# The argument block: threads, planes, h, w, rows, columns, the padding before h and w, then the
# operands; a plane is [h, w], or [h, w, lanes].  Lanes, window and stride are part of the text:
# strided loads become vectors and shuffles.
OPEN = """
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], planes = a[1], h = a[2], w = a[3], rows = a[4], columns = a[5];
  const int64_t r = %(r)d, s = %(s)d, down = %(down)d, across = %(across)d;
  const int64_t top = a[6], left = a[7], lanes = %(lanes)d;
  (void)h; (void)lanes; (void)threads;
"""

FORWARD = (
    OPEN
    + """
  const %(T)s *x = (const %(T)s *)(slots[a[8]] + a[9]);
  %(T)s *y = (%(T)s *)(slots[a[10]] + a[11]);
  %(P)s *place = (%(P)s *)(slots[a[12]] + a[13]);
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t plane = 0; plane < planes; plane++)
    for (int64_t i = 0; i < rows; i++) {
      %(T)s *best = y + (plane * rows + i) * columns;
      int32_t at[columns]; /* as wide as most elements, so that both are vectors of one length */
      int begun = 0; /* a window may begin in the padding: start with its first pixel */
      for (int64_t p = 0; p < r; p++) {
        const int64_t row = i * down - top + p;
        if (row < 0 || row >= h) continue;
        const %(T)s *from = x + (plane * h + row) * w - left;
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
      %(P)s *kept = place + (plane * rows + i) * columns;
      for (int64_t j = 0; j < columns; j++) kept[j] = at[j];
    }
  return 0;
}
"""
)

# The same for images with lanes, a block of them at a time.  Types say which vectors, because those
# that gcc makes of loops over lanes are slow: it unrolls such short loops before it looks.
LANES_FORWARD = (
    OPEN
    + """
  enum { BLOCK = %(block)d };
  typedef %(T)s values __attribute__((vector_size(BLOCK * sizeof(%(T)s))));
  typedef int%(bits)d_t mask __attribute__((vector_size(BLOCK * sizeof(%(T)s))));
  typedef int32_t numbers __attribute__((vector_size(BLOCK * sizeof(int32_t))));
  typedef %(P)s places __attribute__((vector_size(BLOCK * sizeof(%(P)s))));
  const %(T)s *x = (const %(T)s *)(slots[a[8]] + a[9]);
  %(T)s *y = (%(T)s *)(slots[a[10]] + a[11]);
  %(P)s *place = (%(P)s *)(slots[a[12]] + a[13]);
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t u = 0; u < planes * rows; u++) {
    const int64_t row = u %% rows * down - top;
    const int64_t p0 = row < 0 ? -row : 0, p1 = h - row < r ? h - row : r;
    for (int64_t j = 0; j < columns; j++) {
      const int64_t column = j * across - left;
      const int64_t q0 = column < 0 ? -column : 0, q1 = w - column < s ? w - column : s;
      const %(T)s *from = x + ((u / rows * h + row) * w + column) * lanes;
      for (int64_t k = 0; k < lanes; k += BLOCK) {
        values best = (values){0} + %(lowest)s;
        numbers at = (numbers){0} + (int32_t)(p0 * s + q0);
        for (int64_t p = p0; p < p1; p++)
          for (int64_t q = q0; q < q1; q++) {
            values v;
            memcpy(&v, from + (p * w + q) * lanes + k, sizeof v);
            const mask better = ~(v <= best) & (best == best);
            const numbers moved = __builtin_convertvector(better, numbers);
            best = (values)(((mask)v & better) | ((mask)best & ~better));
            at = ((int32_t)(p * s + q) & moved) | (at & ~moved);
          }
        const places kept = __builtin_convertvector(at, places);
        memcpy(y + (u * columns + j) * lanes + k, &best, sizeof best);
        memcpy(place + (u * columns + j) * lanes + k, &kept, sizeof kept);
      }
    }
  }
  return 0;
}
"""
)

# Zeros are written just before the first window that reaches them, while they stay in the cache.
BACKWARD = (
    OPEN
    + """
  const %(T)s *dy = (const %(T)s *)(slots[a[8]] + a[9]);
  const %(P)s *place = (const %(P)s *)(slots[a[10]] + a[11]);
  %(T)s *dx = (%(T)s *)(slots[a[12]] + a[13]);
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t plane = 0; plane < planes; plane++) {
    %(T)s *to = dx + plane * h * w * lanes;
    int64_t begun = 0;
    for (int64_t i = 0; i < rows; i++) {
      const int64_t reach = i * down - top + r, end = reach < h && i + 1 < rows ? reach : h;
      if (begun < end) {
        memset(to + begun * w * lanes, 0, (end - begun) * w * lanes * sizeof(%(T)s));
        begun = end;
      }
      for (int64_t j = 0; j < columns; j++) {
        const int64_t corner = (i * down - top) * w + j * across - left;
        for (int64_t k = 0; k < lanes; k++) {
          const int64_t o = ((plane * rows + i) * columns + j) * lanes + k, at = place[o];
          to[(corner + at + at / s * (w - s)) * lanes + k] += dy[o];
        }
      }
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
    lanes = math.prod(x[4:])
    fill: dict[str, object] = {
        "T": c_type(held),
        "P": c_type(place),
        "lowest": limits(held)["lowest"],
        "lanes": lanes,
        "block": math.gcd(lanes, 8),
        "bits": 8 * held.itemsize,
    }
    fill |= zip(("r", "s", "down", "across"), (*pooling.window, *pooling.stride), strict=True)
    (top, _), (left, _) = pooling.padding
    sizes = (threads, x[0] * x[1], *x[2:4], *y[2:4])
    made = call(text % fill, *sizes, top, left)
    return NativeKernel(node, [made])


def max_pool2d(op: MaxPool2d, node: Node, threads: int) -> NativeKernel:
    y, place = node.specs
    x = node.inputs[0].shape
    text = FORWARD if len(x) == 4 else LANES_FORWARD
    return _kernel(text, node, op.pooling, x, y.shape, (y.dtype, place.dtype), threads)


def max_pool2d_backward(op: MaxPool2dBackward, node: Node, threads: int) -> NativeKernel:
    dy, place = node.inputs
    dtypes = (dy.dtype, place.dtype)
    return _kernel(BACKWARD, node, op.pooling, node.shape, dy.shape, dtypes, threads)


def laid_out(op: LaidOut, node: Node, threads: int) -> NativeKernel | None:
    """Return the kernel of max pooling if all images lie alike, else None."""
    if len({*op.lanes_in, *op.lanes_out}) > 1:
        return None
    match op.plain:
        case MaxPool2d():
            return max_pool2d(op.plain, node, threads)
        case MaxPool2dBackward():
            return max_pool2d_backward(op.plain, node, threads)
    return None


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {
    MaxPool2d: max_pool2d,
    MaxPool2dBackward: max_pool2d_backward,
    LaidOut: laid_out,
}

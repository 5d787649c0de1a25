"""Softmax, its cross entropy, and local response normalisation in C.

oneDNN's softmax loses NaN and infinity; its local response normalisation keeps a running sum over
channels, in which the error of a large channel stays after the channel has left the window.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

from minigraph.devices.cpu.kernel import KernelCall, NativeKernel, call
from minigraph.graph import Node, Op
from minigraph.jit.expression import c_type
from minigraph.ops.elementwise import kind
from minigraph.ops.loss import CrossEntropy, CrossEntropyBackward
from minigraph.ops.normalization import LocalResponseNorm, LogSoftmax, Softmax

# The largest of n elements, NaN if there is one; and the sum of exp(p - peak), which are kept in q
# unless that is NULL.
ROW = """
static %(T)s NAME_peak(const %(T)s *p, int64_t n) {
  %(T)s lane[32], peak;
  for (int k = 0; k < 32; k++) lane[k] = -INFINITY;
  int64_t j = 0;
  for (; j + 32 <= n; j += 32)
    for (int k = 0; k < 32; k++)
      lane[k] = p[j + k] > lane[k] || p[j + k] != p[j + k] ? p[j + k] : lane[k];
  for (; j < n; j++) lane[0] = p[j] > lane[0] || p[j] != p[j] ? p[j] : lane[0];
  peak = lane[0];
  for (int k = 1; k < 32; k++) peak = lane[k] > peak || lane[k] != lane[k] ? lane[k] : peak;
  return peak;
}
static double NAME_sum(const %(T)s *p, int64_t n, %(T)s peak, %(T)s *q) {
  double total = 0;
  for (int64_t j = 0; j < n; j += 1024) {
    const int64_t m = n - j < 1024 ? n - j : 1024;
    %(T)s e[1024], part = 0;
    for (int64_t k = 0; k < m; k++) e[k] = exp%(f)s(p[j + k] - peak);
    #pragma omp simd reduction(+ : part)
    for (int64_t k = 0; k < m; k++) part += e[k];
    if (q) memcpy(q + j, e, m * sizeof *e);
    total += part;
  }
  return total;
}
"""

# The axis has n elements, inner elements of later axes apart.  Where nothing comes later it is
# contiguous, and the loops along it are vectorised; else those over the later axes are.
SOFTMAX = (
    ROW
    + """
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], n = a[2], inner = a[3];
  const %(T)s *x = (const %(T)s *)(slots[a[4]] + a[5]);
  %(T)s *y = (%(T)s *)(slots[a[6]] + a[7]);
  (void)threads;
  if (inner == 1) {
    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t o = 0; o < outer; o++) {
      const %(T)s *p = x + o * n;
      %(T)s *q = y + o * n;
      const %(T)s peak = NAME_peak(p, n);
      if (%(log)s) {
        const %(T)s shift = log(NAME_sum(p, n, peak, NULL));
        for (int64_t j = 0; j < n; j++) q[j] = (p[j] - peak) - shift;
      } else {
        const %(T)s scale = 1 / NAME_sum(p, n, peak, q);
        for (int64_t j = 0; j < n; j++) q[j] *= scale;
      }
    }
    return 0;
  }
  const int64_t blocks = (inner + 255) / 256;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t u = 0; u < outer * blocks; u++) {
    const int64_t first = u %% blocks * 256, m = inner - first < 256 ? inner - first : 256;
    const %(T)s *p = x + u / blocks * n * inner + first;
    %(T)s *q = y + u / blocks * n * inner + first;
    %(T)s peak[256], total[256];
    for (int64_t k = 0; k < m; k++) peak[k] = -INFINITY, total[k] = 0;
    for (int64_t j = 0; j < n; j++)
      for (int64_t k = 0; k < m; k++) {
        const %(T)s v = p[j * inner + k];
        peak[k] = v > peak[k] || v != v ? v : peak[k];
      }
    for (int64_t j = 0; j < n; j++)
      for (int64_t k = 0; k < m; k++) {
        const %(T)s e = exp%(f)s(p[j * inner + k] - peak[k]);
        if (!%(log)s) q[j * inner + k] = e;
        total[k] += e;
      }
    for (int64_t k = 0; k < m; k++) total[k] = %(log)s ? log%(f)s(total[k]) : 1 / total[k];
    for (int64_t j = 0; j < n; j++)
      for (int64_t k = 0; k < m; k++) {
        if (%(log)s) q[j * inner + k] = (p[j * inner + k] - peak[k]) - total[k];
        else q[j * inner + k] *= total[k];
      }
  }
  return 0;
}
"""
)

LABELS = """
static int NAME_outside(const %(L)s *label, int64_t rows, int64_t n) {
  for (int64_t o = 0; o < rows; o++)
    if ((uint64_t)label[o] >= (uint64_t)n) return 1; /* a negative one is a large one */
  return 0;
}
"""

# These refuse (1) before they write if a label is out of range.
CROSS_ENTROPY = (
    ROW
    + LABELS
    + """
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], rows = a[1], n = a[2];
  const %(T)s *x = (const %(T)s *)(slots[a[3]] + a[4]);
  const %(L)s *label = (const %(L)s *)(slots[a[5]] + a[6]);
  %(T)s *y = (%(T)s *)(slots[a[7]] + a[8]);
  (void)threads;
  if (NAME_outside(label, rows, n)) return 1;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t o = 0; o < rows; o++) {
    const %(T)s *p = x + o * n;
    const %(T)s peak = NAME_peak(p, n), shift = log(NAME_sum(p, n, peak, NULL));
    y[o] = -((p[label[o]] - peak) - shift);
  }
  return 0;
}
"""
)

# May write where it reads: of a row of x nothing is read any more once q holds the exponentials.
CROSS_ENTROPY_BACKWARD = (
    ROW
    + LABELS
    + """
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], rows = a[1], n = a[2];
  const %(T)s *dy = (const %(T)s *)(slots[a[3]] + a[4]);
  const %(T)s *x = (const %(T)s *)(slots[a[5]] + a[6]);
  const %(L)s *label = (const %(L)s *)(slots[a[7]] + a[8]);
  %(T)s *dx = (%(T)s *)(slots[a[9]] + a[10]);
  (void)threads;
  if (NAME_outside(label, rows, n)) return 1;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t o = 0; o < rows; o++) {
    const %(T)s *p = x + o * n, d = dy[o];
    %(T)s *q = dx + o * n;
    const %(T)s peak = NAME_peak(p, n), scale = 1 / NAME_sum(p, n, peak, q);
    const %(T)s chosen = -d + q[label[o]] * scale * d;
    for (int64_t j = 0; j < n; j++) q[j] = 0 + q[j] * scale * d; /* 0 +: no -0 */
    q[label[o]] = chosen;
  }
  return 0;
}
"""
)

# The argument block ends with the bits of alpha / size, beta and k, as doubles.
LOCAL_RESPONSE_NORM = """
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], images = a[1], channels = a[2], pixels = a[3], size = a[4];
  double scale, beta, bias;
  memcpy(&scale, a + 5, 8);
  memcpy(&beta, a + 6, 8);
  memcpy(&bias, a + 7, 8);
  const %(T)s *x = (const %(T)s *)(slots[a[8]] + a[9]);
  %(T)s *y = (%(T)s *)(slots[a[10]] + a[11]);
  (void)threads;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t u = 0; u < images * channels; u++) {
    const int64_t c = u %% channels, low = c < size / 2 ? -c : -(size / 2);
    int64_t high = size - 1 - size / 2;
    if (high > channels - 1 - c) high = channels - 1 - c;
    const %(T)s *p = x + u * pixels;
    %(T)s *q = y + u * pixels;
    for (int64_t j = 0; j < pixels; j++) {
      %(T)s sum = 0;
      for (int64_t k = low; k <= high; k++) sum += p[k * pixels + j] * p[k * pixels + j];
      q[j] = p[j] * pow%(f)s(sum * (%(T)s)scale + (%(T)s)bias, -(%(T)s)beta);
    }
  }
  return 0;
}
"""


def softmax(op: Softmax | LogSoftmax, node: Node, threads: int) -> NativeKernel | None:
    if kind(node.dtype) != "f":
        return None
    text = SOFTMAX % {**_types(node), "log": int(isinstance(op, LogSoftmax))}
    outer, n = math.prod(node.shape[: op.axis]), node.shape[op.axis]
    sizes = (threads, outer, n, node.size // (outer * n))
    return NativeKernel(node, [call(text, *sizes)])


def cross_entropy(op: CrossEntropy, node: Node, threads: int) -> NativeKernel:
    logits, labels = node.inputs
    made = _rows(CROSS_ENTROPY, logits, labels, threads)
    return NativeKernel(node, [made], refuses=True)


def cross_entropy_backward(op: CrossEntropyBackward, node: Node, threads: int) -> NativeKernel:
    _, logits, labels = node.inputs
    made = _rows(CROSS_ENTROPY_BACKWARD, logits, labels, threads)
    return NativeKernel(node, [made], inplace=((), (0,), ()), refuses=True)


def _rows(text: str, logits: Node, labels: Node, threads: int) -> KernelCall:
    filled = text % {**_types(logits), "L": c_type(labels.dtype)}
    return call(filled, threads, labels.size, logits.shape[-1])


def local_response_norm(op: LocalResponseNorm, node: Node, threads: int) -> NativeKernel:
    images, channels = node.shape[:2]
    pixels = node.size // (images * channels)
    numbers = (bits(op.alpha / op.size), bits(op.beta), bits(op.k))
    text = LOCAL_RESPONSE_NORM % _types(node)
    return NativeKernel(node, [call(text, threads, images, channels, pixels, op.size, *numbers)])


def _types(node: Node) -> dict[str, Any]:
    return {"T": c_type(node.dtype), "f": "f" if node.dtype.itemsize == 4 else ""}


def bits(value: float) -> int:
    """Return the bits of a double as an integer, which is what argument blocks hold."""
    return int.from_bytes(struct.pack("<d", value), "little", signed=True)


KERNELS: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {
    Softmax: softmax,
    LogSoftmax: softmax,
    CrossEntropy: cross_entropy,
    CrossEntropyBackward: cross_entropy_backward,
    LocalResponseNorm: local_response_norm,
}

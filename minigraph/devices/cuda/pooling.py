"""Max and average pooling, and local response normalisation, in CUDA.

A plane is [h, w], or [h, w, lanes] in the other layouts of `minigraph.ops.layout`.  A thread does a
group of neighbours: lanes of a pixel, which it loads and stores at once where all groups are whole,
or the same pixel of some planes.  So what it computes of indices serves all of them.

It looks at the window of an element of the output.  For the gradient it gathers from the windows
that reach its pixels, so that nothing is added by two threads.  All loads of a thread come from
inside the image, also those that do not count: then none has to wait for a comparison.
"""

from __future__ import annotations

import math
import struct

from minigraph.devices.cuda.kernel import CudaKernel
from minigraph.devices.cuda.template import Kernels, element, written_kernel
from minigraph.graph import Node, Shape
from minigraph.jit.c.body import limits
from minigraph.ops.elementwise import kind
from minigraph.ops.layout import LaidOut
from minigraph.ops.normalization import LocalResponseNorm
from minigraph.ops.pooling import (
    AvgPool2d,
    AvgPool2dBackward,
    MaxPool2d,
    MaxPool2dBackward,
    Pooling,
)
from minigraph.ops.reduction import FEW

# Sizes: count, h, w, rows, columns, lanes, planes, the padding before h and w.  Window and stride
# are part of the text, so that short loops are unrolled.  A group is the ith of %(high)s and the
# jth of %(wide)s; of its neighbours n are there.
GROUP = """
template <typename T>
static __forceinline__ void NAME_load(T *to, const T *from, bool whole, %(I)s apart, %(I)s n) {
  if (whole) {
    mg_load<%(V)d>(to, (const char *)from);
  } else {
    #pragma unroll
    for (int u = 0; u < %(V)d; u++) to[u] = from[min((%(I)s)u, n - 1) * apart];
  }
}
template <typename T>
static __forceinline__ void NAME_store(T *to, const T *from, bool whole, %(I)s apart, %(I)s n) {
  if (whole) {
    mg_store<%(V)d>((char *)to, from);
  } else {
    #pragma unroll
    for (int u = 0; u < %(V)d; u++)
      if (u < n) to[u * apart] = from[u];
  }
}
static __forceinline__ int NAME_clamp(int i, int n) { return min(max(i, 0), n - 1); }
template <bool whole> static __forceinline__ void NAME_group(const NAME_args &a, %(I)s e) {
  const int64_t *size = a.w + %(sizes)d;
  const int h = size[1], w = size[2], rows = size[3], columns = size[4];
  const %(I)s lanes = size[5], planes = size[6];
  const int top = size[7], left = size[8];
  const int r = %(r)d, s = %(s)d, down = %(down)d, across = %(across)d;
  const %(I)s groups = %(last)d ? (lanes + %(V)d - 1) / %(V)d : 1;
  %(I)s t = e / groups;
  const %(I)s lane = (e - t * groups) * %(V)d;
  const int j = t %% (%(I)s)(%(wide)s);
  t /= (%(I)s)(%(wide)s);
  const int i = t %% (%(I)s)(%(high)s);
  const %(I)s plane = t / (%(I)s)(%(high)s) * (%(last)d ? 1 : %(V)d);
  const %(I)s n = %(last)d ? lanes - lane : planes - plane;
  const %(I)s pixels = (%(I)s)h * w, windows = (%(I)s)rows * columns;
  const %(I)s apart = %(last)d ? 1 : pixels, windows_apart = %(last)d ? 1 : windows;
"""

CALL = """
    const bool aligned = !(%(addresses)s & 15);
    if (%(last)d && aligned && (uint32_t)a.w[%(sizes)d + 5] %% %(V)d == 0)
      NAME_group<true>(a, e);
    else
      NAME_group<false>(a, e);
"""

FORWARD = (
    GROUP
    + """
  const int y = i * down - top, x = j * across - left;
  const %(T)s *from = (const %(T)s *)mg_global(a.w[0]) + plane * pixels * lanes + lane;
  const %(I)s o = (plane * windows + (%(I)s)i * columns + j) * lanes + lane;
  %(T)s result[%(V)d];
  BEGIN
  #pragma unroll %(rows)d
  for (int p = 0; p < r; p++)
    #pragma unroll 8
    for (int q = 0; q < s; q++) {
      const bool inside = y + p >= 0 && y + p < h && x + q >= 0 && x + q < w;
      const %(I)s pixel = (%(I)s)NAME_clamp(y + p, h) * w + NAME_clamp(x + q, w);
      %(T)s given[%(V)d];
      NAME_load(given, from + pixel * lanes, whole, apart, n);
      #pragma unroll
      for (int u = 0; u < %(V)d; u++) {
        const %(W)s v = %(load)s(given[u]);
        STEP
      }
    }
  #pragma unroll
  for (int u = 0; u < %(V)d; u++) END
  NAME_store((%(T)s *)mg_global(a.w[1]) + o, result, whole, windows_apart, n);
"""
)

# A window may begin in the padding: start with its first pixel.
MAX_BEGIN = """
  %(W)s best[%(V)d];
  %(P)s at[%(V)d];
  #pragma unroll
  for (int u = 0; u < %(V)d; u++) best[u] = %(lowest)s, at[u] = max(0, -y) * s + max(0, -x);
"""
MAX_STEP = """{
          const bool larger = inside & !(v <= best[u]) & (best[u] == best[u]); /* or a first NaN */
          best[u] = larger ? v : best[u];
          at[u] = larger ? p * s + q : at[u];
        }"""
MAX = (
    FORWARD.replace("BEGIN", MAX_BEGIN)
    .replace("STEP", MAX_STEP)
    .replace("END", "result[u] = %(store)s(best[u]);")
    + """
  NAME_store((%(P)s *)mg_global(a.w[2]) + o, at, whole, windows_apart, n);
}
"""
)

# Four more sizes: the first row that counts as an element of a window, and the one behind the last;
# the same of columns.
COUNT = """
  const int height = min((int)size[10], y + r) - max((int)size[9], y);
  const int width = min((int)size[12], x + s) - max((int)size[11], x);
"""

AVERAGE = (
    FORWARD.replace("BEGIN", COUNT + "  %(S)s sum[%(V)d] = {};")
    .replace("STEP", "sum[u] += inside ? v : 0;")
    .replace("END", "result[u] = %(store)s((%(W)s)sum[u] / (%(W)s)(height * width));")
    + "}\n"
)

# A thread does a cell of pixels, which lie in the same windows: one, or as many as those are apart.
BACKWARD = (
    GROUP
    + """
  const int first_y = i * %(cell_h)d, first_x = j * %(cell_w)d;
  const int last_i = first_y / down, last_j = first_x / across;
  const int in_y = first_y %% down, in_x = first_x %% across;
  const %(T)s *dy = (const %(T)s *)mg_global(a.w[0]) + plane * windows * lanes + lane;
  %(S)s sum[%(cell_h)d][%(cell_w)d][%(V)d] = {};
  #pragma unroll %(rows)d
  for (int k = 0; k < %(reach_h)d; k++)
    #pragma unroll 8
    for (int l = 0; l < %(reach_w)d; l++) {
      const int y = (last_i - k) * down - top, x = (last_j - l) * across - left;
      const bool there = last_i >= k && last_i - k < rows && last_j >= l && last_j - l < columns;
      const int row = NAME_clamp(last_i - k, rows), column = NAME_clamp(last_j - l, columns);
      const %(I)s o = ((%(I)s)row * columns + column) * lanes;
      %(T)s given[%(V)d];
      NAME_load(given, dy + o, whole, windows_apart, n);
      WINDOW
      #pragma unroll
      for (int p = 0; p < %(cell_h)d; p++)
        #pragma unroll
        for (int q = 0; q < %(cell_w)d; q++) {
          const int place_y = k * down + in_y + p, place_x = l * across + in_x + q;
          const bool counts = there && place_y < r && place_x < s;
          #pragma unroll
          for (int u = 0; u < %(V)d; u++) SHARE
        }
    }
  %(T)s *dx = (%(T)s *)mg_global(a.w[%(result)d]) + plane * pixels * lanes + lane;
  #pragma unroll
  for (int p = 0; p < %(cell_h)d; p++)
    #pragma unroll
    for (int q = 0; q < %(cell_w)d; q++) {
      const int y = first_y + p - top, x = first_x + q - left;
      if (y < 0 || y >= h || x < 0 || x >= w) continue;
      %(T)s result[%(V)d];
      #pragma unroll
      for (int u = 0; u < %(V)d; u++) result[u] = %(store)s((%(W)s)sum[p][q][u]);
      NAME_store(dx + ((%(I)s)y * w + x) * lanes, result, whole, apart, n);
    }
}
"""
)

PLACES = """
      %(P)s at[%(V)d];
      const %(P)s *place = (const %(P)s *)mg_global(a.w[1]) + plane * windows * lanes + lane;
      NAME_load(at, place + o, whole, windows_apart, n);
"""
MAX_BACKWARD = BACKWARD.replace("WINDOW", PLACES).replace(
    "SHARE",
    """
            sum[p][q][u] +=
                at[u] == (counts ? place_y * s + place_x : -1) ? %(load)s(given[u]) : (%(W)s)0;""",
)

AVERAGE_BACKWARD = BACKWARD.replace(
    "WINDOW",
    COUNT
    + """
      %(W)s share[%(V)d];
      #pragma unroll
      for (int u = 0; u < %(V)d; u++) share[u] = %(load)s(given[u]) / (%(W)s)(height * width);
""",
).replace("SHARE", "sum[p][q][u] += counts ? share[u] : 0;")


# A thread does an element.  Sizes: count, channels, pixels, how many channels make a window, then
# the bits of alpha / size, beta and k, as doubles.
RESPONSES = """
    const %(I)s pixels = a.w[%(sizes)d + 2];
    const int64_t channels = a.w[%(sizes)d + 1], window = a.w[%(sizes)d + 3];
    const %(W)s scale = __longlong_as_double(a.w[%(sizes)d + 4]);
    const %(W)s beta = __longlong_as_double(a.w[%(sizes)d + 5]);
    const %(W)s bias = __longlong_as_double(a.w[%(sizes)d + 6]);
    const int64_t c = e / pixels %% (%(I)s)channels;
    const int64_t low = max(-c, -(window / 2));
    const int64_t high = min(channels - 1 - c, window - 1 - window / 2);
    const %(T)s *p = (const %(T)s *)mg_global(a.w[0]) + e;
    %(S)s sum = 0;
    for (int64_t k = low; k <= high; k++) {
      const %(W)s v = %(load)s(p[k * (int64_t)pixels]);
      sum += v * v;
    }
    const %(W)s v = %(load)s(p[0]);
    ((%(T)s *)mg_global(a.w[1]))[e] = %(store)s(v * pow%(f)s((%(W)s)sum * scale + bias, -beta));
"""


def _made(
    text: str,
    node: Node,
    pooling: Pooling,
    backward: bool,
    extra: tuple[int, ...] = (),
    **fill: object,
) -> CudaKernel:
    """Return the kernel of a pooling, or of its gradient."""
    result, given = node.specs[0], node.inputs[0].spec
    (x, y), dtype = (result.shape, given.shape)[:: 1 if backward else -1], result.dtype
    (h, w), lanes, planes, last = x[2:4], math.prod(x[4:]), x[0] * x[1], len(x) == 5
    (top, _), (left, _) = pooling.padding
    window = zip(("r", "s", "down", "across"), (*pooling.window, *pooling.stride), strict=True)
    sizes = (*x[2:4], *y[2:4], lanes, planes, top, left, *extra)
    neighbours = min(8, 16 // dtype.itemsize) if last else PLANES
    reach: tuple[int, ...] = pooling.window
    high, wide = y[2:4]
    addresses = " | ".join(f"a.w[{i}]" for i in range(len(node.inputs) + len(node.specs)))
    fill |= {**element(dtype), **dict(window), "V": neighbours, "last": int(last)}
    fill |= {"high": "rows", "wide": "columns", "addresses": f"({addresses})"}
    if backward:
        reach = tuple(-(-k // t) for k, t in zip(reach, pooling.stride, strict=True))
        cell = pooling.stride if last else (pooling.stride[0], 1)
        if math.prod(cell) > MOST_PIXELS or math.prod(reach) > MOST_PIXELS:
            cell = (1, 1)
        fill |= {"cell_h": cell[0], "cell_w": cell[1], "reach_h": reach[0], "reach_w": reach[1]}
        fill |= {"result": len(node.inputs)}
        fill |= {"high": f"(h + top + {cell[0] - 1}) / {cell[0]}"}
        fill |= {"wide": f"(w + left + {cell[1] - 1}) / {cell[1]}"}
        high, wide = -(-(h + top) // cell[0]), -(-(w + left) // cell[1])
    if math.prod(reach) <= FEW:
        fill["S"] = fill["W"]
    fill["rows"] = reach[0] if math.prod(reach) <= UNROLLED else 1
    groups = -(-lanes // neighbours) * planes if last else -(-planes // neighbours)
    resident, count = RESIDENT * last, groups * high * wide
    return written_kernel(node, CALL, fill, count, sizes, functions=text, resident=resident)


PLANES = 4  # that a thread does at once
MOST_PIXELS = 4  # of a cell, and windows that reach it: their sums and elements are in registers
RESIDENT = 3  # blocks of a multiprocessor: with two, too few loads are on their way
UNROLLED = 16  # elements of a window up to which its rows are unrolled


def max_pool2d(op: MaxPool2d, node: Node) -> CudaKernel:
    y, place = node.specs
    held, lowest = element(place.dtype)["T"], limits(y.dtype)["lowest"]
    return _made(MAX, node, op.pooling, False, P=held, lowest=lowest)


def max_pool2d_backward(op: MaxPool2dBackward, node: Node) -> CudaKernel:
    _, place = node.inputs
    return _made(MAX_BACKWARD, node, op.pooling, True, P=element(place.dtype)["T"])


def avg_pool2d(op: AvgPool2d, node: Node) -> CudaKernel | None:
    (x,) = node.inputs
    large = math.prod(op.pooling.window) > FEW
    if kind(x.dtype) != "f" or (large and not any(map(any, op.pooling.padding))):
        return None  # many threads share a large window in a generated kernel
    return _made(AVERAGE, node, op.pooling, False, _counted(op, x.shape))


def avg_pool2d_backward(op: AvgPool2dBackward, node: Node) -> CudaKernel | None:
    if kind(node.dtype) != "f":
        return None
    return _made(AVERAGE_BACKWARD, node, op.pool.pooling, True, _counted(op.pool, node.shape))


def _counted(op: AvgPool2d, x: Shape) -> tuple[int, ...]:
    """Return which rows, then which columns, count as elements of windows: first and behind."""
    if not op.count_padding:
        return 0, x[2], 0, x[3]
    (top, bottom), (left, right) = op.pooling.padding
    p, q = op.pad
    return -top, x[2] + min(p, bottom), -left, x[3] + min(q, right)


def laid_out(op: LaidOut, node: Node) -> CudaKernel | None:
    """Return the kernel of pooling if all images lie alike, else None."""
    if len({*op.lanes_in, *op.lanes_out}) > 1 or type(op.plain) not in POOLINGS:
        return None
    return POOLINGS[type(op.plain)](op.plain, node)


def local_response_norm(op: LocalResponseNorm, node: Node) -> CudaKernel:
    channels, pixels = node.shape[1], math.prod(node.shape[2:])
    bits = struct.unpack("<3q", struct.pack("<3d", op.alpha / op.size, op.beta, op.k))
    sizes = (channels, pixels, op.size, *bits)
    fill = element(node.dtype)
    if op.size <= FEW:
        fill["S"] = fill["W"]
    return written_kernel(node, RESPONSES, fill, node.size, sizes)


POOLINGS: Kernels = {
    MaxPool2d: max_pool2d,
    MaxPool2dBackward: max_pool2d_backward,
    AvgPool2d: avg_pool2d,
    AvgPool2dBackward: avg_pool2d_backward,
}
KERNELS: Kernels = {**POOLINGS, LaidOut: laid_out, LocalResponseNorm: local_response_norm}

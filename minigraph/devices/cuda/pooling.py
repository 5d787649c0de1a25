"""Max and average pooling in CUDA.

A thread does one element: of the output, where it looks at the window; of the gradient, where it
gathers from the windows that reach its pixel, so that nothing is added by two threads.  A plane is
[h, w], or [h, w, lanes] in the other layouts of `minigraph.ops.layout`.
"""

from __future__ import annotations

import math

from minigraph.devices.cuda.template import Kernels, WrittenKernel, each_element, element
from minigraph.graph import DType, Node, Shape
from minigraph.jit.c.body import limits
from minigraph.ops.elementwise import kind
from minigraph.ops.layout import LaidOut
from minigraph.ops.pooling import (
    AvgPool2d,
    AvgPool2dBackward,
    MaxPool2d,
    MaxPool2dBackward,
    Pooling,
)
from minigraph.ops.reduction import FEW

# Sizes: count, h, w, rows, columns, lanes, the padding before h and w.  Window and stride are part
# of the text, so that short loops are unrolled.
SIZES = """
    const int64_t *size = a.w + %(sizes)d;
    const int h = size[1], w = size[2], rows = size[3], columns = size[4];
    const %(I)s lanes = size[5];
    const int top = size[6], left = size[7];
    const int r = %(r)d, s = %(s)d, down = %(down)d, across = %(across)d;
    const %(I)s lane = e %% lanes;
"""

# Which window an element of the output belongs to, and where it begins.
WINDOW = (
    SIZES
    + """
    %(I)s t = e / lanes;
    const int j = t %% columns;
    t /= columns;
    const int i = t %% rows;
    const %(I)s plane = t / rows;
    const int y = i * down - top, x = j * across - left;
"""
)

# Which pixel an element of the gradient belongs to, and the last window that reaches it.
PIXEL = (
    SIZES
    + """
    %(I)s t = e / lanes;
    const int x = t %% w + left;
    t /= w;
    const int y = t %% h + top;
    const %(I)s plane = t / h;
    const int last_i = min(rows - 1, y / down), last_j = min(columns - 1, x / across);
"""
)

MAX = (
    WINDOW
    + """
    const %(T)s *from = (const %(T)s *)mg_global(a.w[0]) + plane * h * w * lanes + lane;
    const int p0 = max(0, -y), q0 = max(0, -x);
    %(W)s best = %(lowest)s;
    int at = p0 * s + q0; /* a window may begin in the padding: start with its first pixel */
    for (int p = 0; p < r; p++)
      for (int q = 0; q < s; q++) {
        if (y + p < 0 || y + p >= h || x + q < 0 || x + q >= w) continue;
        const %(W)s v = %(load)s(from[((%(I)s)(y + p) * w + (x + q)) * lanes]);
        if (v > best || (v != v && best == best)) best = v, at = p * s + q;
      }
    ((%(T)s *)mg_global(a.w[1]))[e] = %(store)s(best);
    ((%(P)s *)mg_global(a.w[2]))[e] = at;
  }
}
"""
)

MAX_BACKWARD = (
    PIXEL
    + """
    const %(T)s *dy = (const %(T)s *)mg_global(a.w[0]);
    const %(P)s *place = (const %(P)s *)mg_global(a.w[1]);
    %(S)s sum = 0;
    for (int i = last_i; i >= 0 && i * down + r > y; i--)
      for (int j = last_j; j >= 0 && j * across + s > x; j--) {
        const %(I)s o = ((plane * rows + i) * columns + j) * lanes + lane;
        const int at = (y - i * down) * s + (x - j * across);
        if (place[o] == at) sum += %(load)s(dy[o]);
      }
    ((%(T)s *)mg_global(a.w[2]))[e] = %(store)s((%(W)s)sum);
  }
}
"""
)

# Four more sizes: the first row that counts as an element of a window, and the one behind the last;
# the same of columns.
COUNT = """
      const int height = min((int)size[9], y + r) - max((int)size[8], y);
      const int width = min((int)size[11], x + s) - max((int)size[10], x);
"""

AVERAGE = (
    WINDOW
    + COUNT
    + """
    const %(T)s *from = (const %(T)s *)mg_global(a.w[0]) + plane * h * w * lanes + lane;
    %(S)s sum = 0;
    for (int p = 0; p < r; p++)
      for (int q = 0; q < s; q++) {
        if (y + p < 0 || y + p >= h || x + q < 0 || x + q >= w) continue;
        sum += %(load)s(from[((%(I)s)(y + p) * w + (x + q)) * lanes]);
      }
    ((%(T)s *)mg_global(a.w[1]))[e] = %(store)s((%(W)s)sum / (%(W)s)(height * width));
  }
}
"""
)

AVERAGE_BACKWARD = (
    PIXEL
    + """
    const %(T)s *dy = (const %(T)s *)mg_global(a.w[0]);
    const int pixel_y = y, pixel_x = x;
    %(S)s sum = 0;
    for (int i = last_i; i >= 0 && i * down + r > pixel_y; i--)
      for (int j = last_j; j >= 0 && j * across + s > pixel_x; j--) {
        const int y = i * down - top, x = j * across - left;"""
    + COUNT
    + """
        const %(I)s o = ((plane * rows + i) * columns + j) * lanes + lane;
        sum += %(load)s(dy[o]) / (%(W)s)(height * width);
      }
    ((%(T)s *)mg_global(a.w[1]))[e] = %(store)s((%(W)s)sum);
  }
}
"""
)


def _made(
    text: str,
    node: Node,
    pooling: Pooling,
    x: Shape,
    y: Shape,
    dtype: DType,
    extra: tuple[int, ...] = (),
    backward: bool = False,
    **fill: object,
) -> WrittenKernel:
    """Return the kernel for images of shape `x` whose windows give `y`."""
    (top, _), (left, _) = pooling.padding
    window = zip(("r", "s", "down", "across"), (*pooling.window, *pooling.stride), strict=True)
    sizes = (*x[2:4], *y[2:4], math.prod(x[4:]), top, left, *extra)
    count = node.specs[0].size
    fill |= {**element(dtype), **dict(window)}
    reach = zip(pooling.window, pooling.stride, strict=True)
    if math.prod(-(-k // t) if backward else k for k, t in reach) <= FEW:
        fill["S"] = fill["W"]
    return WrittenKernel(each_element(node, text, count, sizes, **fill))


def max_pool2d(op: MaxPool2d, node: Node) -> WrittenKernel:
    (x,), (y, place) = node.inputs, node.specs
    held, lowest = element(place.dtype)["T"], limits(y.dtype)["lowest"]
    return _made(MAX, node, op.pooling, x.shape, y.shape, y.dtype, P=held, lowest=lowest)


def max_pool2d_backward(op: MaxPool2dBackward, node: Node) -> WrittenKernel:
    dy, place = node.inputs
    held = element(place.dtype)["T"]
    return _made(
        MAX_BACKWARD, node, op.pooling, node.shape, dy.shape, dy.dtype, backward=True, P=held
    )


def avg_pool2d(op: AvgPool2d, node: Node) -> WrittenKernel | None:
    (x,) = node.inputs
    large = math.prod(op.pooling.window) > FEW
    if kind(x.dtype) != "f" or (large and not any(map(any, op.pooling.padding))):
        return None  # many threads share a large window in a generated kernel
    extra = _counted(op, x.shape)
    return _made(AVERAGE, node, op.pooling, x.shape, node.shape, x.dtype, extra)


def avg_pool2d_backward(op: AvgPool2dBackward, node: Node) -> WrittenKernel | None:
    (dy,) = node.inputs
    if kind(dy.dtype) != "f":
        return None
    extra = _counted(op.pool, node.shape)
    return _made(
        AVERAGE_BACKWARD, node, op.pool.pooling, node.shape, dy.shape, dy.dtype, extra, True
    )


def _counted(op: AvgPool2d, x: Shape) -> tuple[int, ...]:
    """Return which rows, then which columns, count as elements of windows: first and behind."""
    if not op.count_padding:
        return 0, x[2], 0, x[3]
    (top, bottom), (left, right) = op.pooling.padding
    p, q = op.pad
    return -top, x[2] + min(p, bottom), -left, x[3] + min(q, right)


def laid_out(op: LaidOut, node: Node) -> WrittenKernel | None:
    """Return the kernel of pooling if all images lie alike, else None."""
    if len({*op.lanes_in, *op.lanes_out}) > 1 or type(op.plain) not in POOLINGS:
        return None
    return POOLINGS[type(op.plain)](op.plain, node)


POOLINGS: Kernels = {
    MaxPool2d: max_pool2d,
    MaxPool2dBackward: max_pool2d_backward,
    AvgPool2d: avg_pool2d,
    AvgPool2dBackward: avg_pool2d_backward,
}
KERNELS: Kernels = {**POOLINGS, LaidOut: laid_out}

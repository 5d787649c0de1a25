"""Elements chosen by indices, and the gradient, in CUDA."""

from __future__ import annotations

from typing import Any

from minigraph.devices.cuda.template import (
    EACH_ROW,
    WHOLE_BLOCK,
    Kernels,
    Range,
    Written,
    each_element,
    each_row,
    element,
)
from minigraph.graph import Node, around
from minigraph.jit.expression import c_type
from minigraph.ops.indexing import Take, TakeBackward

# A thread does an element of y [outer, indices, columns]; x is [outer, n, columns].
TEXT = """
    const %(I)s n = a.w[%(sizes)d + 1], indices = a.w[%(sizes)d + 2], columns = a.w[%(sizes)d + 3];
    const %(I)s place = e / columns;
    const %(L)s index = ((const %(L)s *)mg_global(a.w[1]))[place %% indices];
    const int64_t at = %(wraps)d && index < 0 ? (int64_t)index + (int64_t)n : (int64_t)index;
    const bool inside = (uint64_t)at < (uint64_t)n;
    if (!inside) *(int *)mg_global(a.w[%(flag)d]) = 1;
    const %(T)s *x = (const %(T)s *)mg_global(a.w[0]);
    ((%(T)s *)mg_global(a.w[2]))[e] =
        inside ? x[(place / indices * n + (%(I)s)at) * columns + e %% columns] : (%(T)s)0;
  }
}
"""

# A block does a row of dx [outer, n, columns]: it looks for its own number among the indices, as
# many at once as it has threads, and adds what it finds in their order, so every run gives the same
# bits.
BACKWARD = (
    EACH_ROW
    + """
    const int64_t columns = a.w[%(sizes)d + 1], n = a.w[%(sizes)d + 2];
    const int64_t indices = a.w[%(sizes)d + 3], outer = row / n, mine = row %% n;
    const %(T)s *dy = (const %(T)s *)mg_global(a.w[0]) + outer * indices * columns;
    const %(L)s *index = (const %(L)s *)mg_global(a.w[1]);
    %(T)s *dx = (%(T)s *)mg_global(a.w[2]) + row * columns;
    __shared__ uint64_t found[32];
    uint8_t *is_mine = (uint8_t *)found;
    for (int64_t first = 0; first < columns; first += blockDim.x) {
      const int64_t j = first + threadIdx.x;
      %(S)s sum = 0;
      for (int64_t begin = 0; begin < indices; begin += 256) {
        const int64_t k = begin + threadIdx.x;
        int64_t at = -1;
        if (k < indices) {
          at = %(wraps)d && index[k] < 0 ? (int64_t)index[k] + n : (int64_t)index[k];
          if ((uint64_t)at >= (uint64_t)n) *(int *)mg_global(a.w[%(flag)d]) = 1;
        }
        is_mine[threadIdx.x] = at == mine;
        __syncthreads();
        for (int i = 0; i < 256; i++)
          if (found[i / 8] == 0) i += 7;
          else if (is_mine[i] && j < columns) sum += %(load)s(dy[(begin + i) * columns + j]);
        __syncthreads();
      }
      if (j < columns) dx[j] = %(store)s((%(W)s)sum);
    }
  }
}
"""
)


def take(op: Take, node: Node) -> Written:
    x, indices = node.inputs
    _, n, columns = around(x.shape, op.axis)
    # What is chosen is moved, whatever it is.
    fill = {"T": f"uint{8 * x.dtype.itemsize}_t", **_places(op, indices)}
    sizes = (n, indices.size, columns)
    launch = each_element(node, TEXT, node.size, sizes, **fill)
    return Written(launch, range=Range(1, 0 if op.tokens else -n, n))


def take_backward(op: TakeBackward, node: Node) -> Written:
    dy, indices = node.inputs
    outer, n, columns = around(op.shape, op.axis)
    fill = {**element(dy.dtype), **_places(op, indices)}
    sizes = (columns, n, indices.size)
    launch = each_row(node, BACKWARD, outer * n, WHOLE_BLOCK, sizes, **fill)
    return Written(launch, range=Range(1, 0 if op.tokens else -n, n))


def _places(op: Take | TakeBackward, indices: Node) -> dict[str, Any]:
    return {"L": c_type(indices.dtype), "wraps": not op.tokens}


KERNELS: Kernels = {Take: take, TakeBackward: take_backward}

"""Gathers and scatters along an axis, in CUDA.

Where several indices may name one element of the result, a thread or a block looks through the
indices for those of its own, so every run gives the same bits.
"""

from __future__ import annotations

from typing import Any

from minigraph.devices.cuda.template import (
    EACH_ROW,
    WHOLE_BLOCK,
    Kernels,
    Range,
    WrittenKernel,
    each_element,
    each_row,
    element,
)
from minigraph.graph import Node, around
from minigraph.jit.expression import c_type
from minigraph.ops.along import AddAlong, PutAlong, TakeAlong
from minigraph.ops.indexing import Take, TakeBackward

# A thread does an element of y [outer, count, columns]; x is [outer, n, columns].  What is moved,
# whatever its type, is moved as unsigned integers.
GATHER = """
    const %(I)s n = a.w[%(sizes)d + 1], count = a.w[%(sizes)d + 2], columns = a.w[%(sizes)d + 3];
    const %(L)s index = ((const %(L)s *)mg_global(a.w[1]))[%(place)s];
    const int64_t at = %(wraps)d && index < 0 ? (int64_t)index + (int64_t)n : (int64_t)index;
    const bool inside = (uint64_t)at < (uint64_t)n;
    if (!inside) *(int *)mg_global(a.w[%(flag)d]) = 1;
    const %(T)s *x = (const %(T)s *)mg_global(a.w[0]);
    ((%(T)s *)mg_global(a.w[2]))[e] =
        inside ? x[(e / columns / count * n + (%(I)s)at) * columns + e %% columns] : (%(T)s)0;
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


# A thread does an element of the result [outer, n, columns]; indices are [outer, count, columns].
SEARCH = """
    const %(I)s n = a.w[%(sizes)d + 1], count = a.w[%(sizes)d + 2], columns = a.w[%(sizes)d + 3];
    const int64_t mine = e / columns %% n;
    const %(I)s begin = e / columns / n * count * columns + e %% columns;
    const %(L)s *index = (const %(L)s *)mg_global(a.w[1]);
    %(begin)s
    for (%(I)s i = 0; i < count; i++) {
      const %(L)s given = index[begin + i * columns];
      const int64_t at = given < 0 ? (int64_t)given + (int64_t)n : (int64_t)given;
      if ((uint64_t)at >= (uint64_t)n) *(int *)mg_global(a.w[%(flag)d]) = 1;
      if (at == mine) %(found)s;
    }
    %(end)s;
  }
}
"""


def take(op: Take, node: Node) -> WrittenKernel:
    wraps = not op.tokens
    return _gather(node, op.axis, node.inputs[1].size, wraps, "e / columns %% count")


def take_along(op: TakeAlong, node: Node) -> WrittenKernel:
    return _gather(node, op.axis, node.shape[op.axis], True, "e")


def _gather(node: Node, axis: int, count: int, wraps: bool, place: str) -> WrittenKernel:
    """Return a gather at `count` indices; an element's lies at `place`."""
    x, indices = node.inputs
    _, n, columns = around(x.shape, axis)
    fill = {"T": f"uint{8 * x.dtype.itemsize}_t", "L": c_type(indices.dtype), "wraps": wraps}
    text = GATHER.replace("%(place)s", place)
    launch = each_element(node, text, node.size, (n, count, columns), **fill)
    return WrittenKernel(launch, range=Range(1, -n if wraps else 0, n))


def take_backward(op: TakeBackward, node: Node) -> WrittenKernel:
    dy, indices = node.inputs
    outer, n, columns = around(op.shape, op.axis)
    fill: dict[str, Any] = {**element(dy.dtype), "L": c_type(indices.dtype), "wraps": not op.tokens}
    sizes = (columns, n, indices.size)
    launch = each_row(node, BACKWARD, outer * n, WHOLE_BLOCK, sizes, **fill)
    return WrittenKernel(launch, range=Range(1, 0 if op.tokens else -n, n))


def add_along(op: AddAlong, node: Node) -> WrittenKernel:
    fill = {
        **element(node.dtype),
        "begin": "%(S)s sum = 0;",
        "found": "sum += %(load)s(((const %(T)s *)mg_global(a.w[0]))[begin + i * columns])",
        "end": "((%(T)s *)mg_global(a.w[2]))[e] = %(store)s((%(W)s)sum)",
    }
    return _search(node, op.axis, fill)


def put_along(op: PutAlong, node: Node) -> WrittenKernel:
    fill = {
        "T": f"uint{8 * node.dtype.itemsize}_t",
        "begin": "%(T)s value = ((const %(T)s *)mg_global(a.w[0]))[e];",
        "found": "value = ((const %(T)s *)mg_global(a.w[2]))[begin + i * columns]",
        "end": "((%(T)s *)mg_global(a.w[3]))[e] = value",
    }
    return _search(node, op.axis, fill)


def _search(node: Node, axis: int, fill: dict[str, str]) -> WrittenKernel:
    """Return a kernel in which each element looks for itself among the indices."""
    indices = node.inputs[1]
    _, n, columns = around(node.shape, axis)
    text = SEARCH
    for part in ("begin", "found", "end"):
        text = text.replace(f"%({part})s", fill.pop(part))
    fill["L"] = c_type(indices.dtype)
    launch = each_element(node, text, node.size, (n, indices.shape[axis], columns), **fill)
    return WrittenKernel(launch, range=Range(1, -n, n))


KERNELS: Kernels = {
    Take: take,
    TakeBackward: take_backward,
    TakeAlong: take_along,
    AddAlong: add_along,
    PutAlong: put_along,
}

"""Elements chosen by indices of each row along an axis, in CUDA.

A thread does an element of the result.  Where several indices may say the same place, it looks
through those of its row, so every run gives the same bits.
"""

from __future__ import annotations

from minigraph.devices.cuda.template import Kernels, Range, Written, each_element, element
from minigraph.graph import Node, around
from minigraph.jit.expression import c_type
from minigraph.ops.along import AddAlong, PutAlong, TakeAlong

# The indices are [outer, count, columns]; x [outer, n, columns].
TAKE = """
    const %(I)s n = a.w[%(sizes)d + 1], row = a.w[%(sizes)d + 2], columns = a.w[%(sizes)d + 3];
    const %(L)s index = ((const %(L)s *)mg_global(a.w[1]))[e];
    const int64_t at = index < 0 ? (int64_t)index + (int64_t)n : (int64_t)index;
    const bool inside = (uint64_t)at < (uint64_t)n;
    if (!inside) *(int *)mg_global(a.w[%(flag)d]) = 1;
    const %(T)s *x = (const %(T)s *)mg_global(a.w[0]);
    ((%(T)s *)mg_global(a.w[2]))[e] =
        inside ? x[(e / row * n + (%(I)s)at) * columns + e %% columns] : (%(T)s)0;
  }
}
"""

# The result is [outer, n, columns].
SEARCH = """
    const %(I)s n = a.w[%(sizes)d + 1], count = a.w[%(sizes)d + 2], columns = a.w[%(sizes)d + 3];
    const int64_t mine = e / columns %% n;
    const %(I)s begin = e / columns / n * count * columns + e %% columns;
    const %(L)s *index = (const %(L)s *)mg_global(a.w[%(indices)d]);
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


def take_along(op: TakeAlong, node: Node) -> Written:
    x, indices = node.inputs
    _, n, columns = around(x.shape, op.axis)
    # What is chosen is moved, whatever it is.
    fill = {"T": f"uint{8 * x.dtype.itemsize}_t", "L": c_type(indices.dtype)}
    sizes = (n, indices.shape[op.axis] * columns, columns)
    return Written(each_element(node, TAKE, node.size, sizes, **fill), range=Range(1, -n, n))


def add_along(op: AddAlong, node: Node) -> Written:
    fill = {
        **element(node.dtype),
        "begin": "%(S)s sum = 0;",
        "found": "sum += %(load)s(((const %(T)s *)mg_global(a.w[0]))[begin + i * columns])",
        "end": "((%(T)s *)mg_global(a.w[2]))[e] = %(store)s((%(W)s)sum)",
    }
    return _searched(node, op.axis, 1, fill)


def put_along(op: PutAlong, node: Node) -> Written:
    fill = {
        "T": f"uint{8 * node.dtype.itemsize}_t",
        "begin": "%(T)s value = ((const %(T)s *)mg_global(a.w[0]))[e];",
        "found": "value = ((const %(T)s *)mg_global(a.w[2]))[begin + i * columns]",
        "end": "((%(T)s *)mg_global(a.w[3]))[e] = value",
    }
    return _searched(node, op.axis, 1, fill)


def _searched(node: Node, axis: int, operand: int, fill: dict[str, str]) -> Written:
    """Return the kernel whose indices are the input `operand`."""
    indices = node.inputs[operand]
    _, n, columns = around(node.shape, axis)
    text = SEARCH
    for part in ("begin", "found", "end"):
        text = text.replace(f"%({part})s", fill.pop(part))
    fill["L"] = c_type(indices.dtype)
    sizes = (n, indices.shape[axis], columns)
    launch = each_element(node, text, node.size, sizes, indices=operand, **fill)
    return Written(launch, range=Range(operand, -n, n))


KERNELS: Kernels = {
    TakeAlong: take_along,
    AddAlong: add_along,
    PutAlong: put_along,
}

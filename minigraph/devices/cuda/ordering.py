"""Sorting, and places in sorted rows, in CUDA."""

from __future__ import annotations

import math

from minigraph.devices.cuda.template import Kernels, Written, each_element, element
from minigraph.graph import Node, around
from minigraph.ops.ordering import Argsort, Searchsorted

# NaN is larger than any number.
LESS = "(%(p)s < %(q)s || (%(q)s != %(q)s && %(p)s == %(p)s))"

# A thread does an element of x [outer, n, inner]: it counts those of its row that come before it.
ARGSORT = """
    const %(I)s n = a.w[%(sizes)d + 1], inner = a.w[%(sizes)d + 2], few = a.w[%(sizes)d + 3];
    const %(I)s mine = e / inner %% n, outer = e / inner / n;
    const %(T)s *row = (const %(T)s *)mg_global(a.w[0]) + (outer * n * inner + e %% inner);
    const %(W)s p = %(load)s(row[mine * inner]);
    %(I)s before = 0;
    for (%(I)s j = 0; j < n; j++) {
      const %(W)s q = %(load)s(row[j * inner]);
      const bool first = BEFORE, second = AFTER;
      before += first || (!second && j < mine);
    }
    if (before < few)
      ((int64_t *)mg_global(a.w[1]))[(outer * few + before) * inner + e %% inner] = mine;
  }
}
"""

# A thread does an element of v [rows, m]; x is [rows, n].
SEARCHSORTED = """
    const %(I)s n = a.w[%(sizes)d + 1], m = a.w[%(sizes)d + 2];
    const %(T)s *row = (const %(T)s *)mg_global(a.w[0]) + e / m * n;
    const %(W)s p = %(load)s(((const %(T)s *)mg_global(a.w[1]))[e]);
    %(I)s low = 0, high = n;
    while (low < high) {
      const %(I)s middle = low + (high - low) / 2;
      const %(W)s q = %(load)s(row[middle]);
      if (BEHIND)
        low = middle + 1;
      else
        high = middle;
    }
    ((int64_t *)mg_global(a.w[2]))[e] = low;
  }
}
"""


def _less(p: str, q: str) -> str:
    return LESS % {"p": p, "q": q}


def argsort(op: Argsort, node: Node) -> Written:
    (x,) = node.inputs
    _, n, inner = around(x.shape, op.axis)
    # An element q comes before p where it is less, or larger if the largest are first.
    pair = ("p", "q") if op.descending else ("q", "p")
    text = ARGSORT.replace("BEFORE", _less(*pair)).replace("AFTER", _less(*pair[::-1]))
    sizes = (n, inner, op.count)
    return Written(each_element(node, text, x.size, sizes, **element(x.dtype)))


def searchsorted(op: Searchsorted, node: Node) -> Written:
    x, v = node.inputs
    behind = f"!{_less('p', 'q')}" if op.right else _less("q", "p")
    sizes = (x.shape[-1], math.prod(v.shape[-1:]))
    text = SEARCHSORTED.replace("BEHIND", behind)
    return Written(each_element(node, text, node.size, sizes, **element(x.dtype)))


KERNELS: Kernels = {Argsort: argsort, Searchsorted: searchsorted}

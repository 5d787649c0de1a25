"""The CUDA text of kernels that reduce nothing.

The text of x * y + 1 for contiguous arrays, in outline:

    static __forceinline__ void BODY(const long long *w, int64_t block, ...) {
      ...                                                where the operands are
      for (int g = block * 256 + threadIdx.x; g < groups; g += blocks * 256) {
        const int column = g * 4;
        float p0[4], p1[4], p2[4];
        mg_load<4>(p0, base0 + column * 4);              16 bytes at once
        mg_load<4>(p1, base1 + column * 4);
        for (int u = 0; u < 4; u++) { ...; p2[u] = v3; }
        mg_store<4>(base2 + column * 4, p2);
      }
      ...                                                the elements that are left, one by one
    }

Where addresses or rows are no multiple of a group all elements are left, and neighbours are loaded
by neighbouring threads.

A transposed operand is read in the tiles that the axes were cut into, one by one, by way of the
caches.  A group is within a window or outside of it: there it is loaded as zeros.
"""

from __future__ import annotations

from dataclasses import replace

from minigraph.jit.cuda.thread import THREADS, bases, declare, part, position, visit, whole_groups
from minigraph.jit.cuda.walk import Walk
from minigraph.jit.emitter import block
from minigraph.jit.expression import takes_index


def body(walk: Walk) -> tuple[str, int]:
    """Return the function BODY, and how many shared words it needs: none."""
    pattern = walk.pattern
    setup = [
        *(f"const {walk.integer} {name} = {walk.option(name)};" for name in walk.options),
        f"const {walk.integer} inner = {walk.extent(walk.innermost)};",
        *whole_groups(walk),
        *bases(walk, ()),
        *(declare(walk, v, "0") for v in pattern.once),
        *(_loop(walk, "groups") if walk.group > 1 else ()),
        f"const {walk.integer} begun = whole * {walk.group};",
        *_loop(replace(walk, most=1), "singles"),
    ]
    return part(setup, ("vector", "groups", "cells")), 0


def _loop(walk: Walk, count: str) -> list[str]:
    """Return the loop over groups, or over single elements."""
    pattern = walk.pattern
    inside = position(walk, "g")
    if any(value.op is not None and takes_index(value.op) for value in pattern.values):
        flat = "(int64_t)0"
        for d in walk.rows:
            flat = f"({flat} * {walk.extent(d)} + i{d})"
        inside.append(f"const int64_t begin = {flat} * inner + column;")
    start = f"{walk.integer} g = ({walk.integer})block * {THREADS} + threadIdx.x"
    step = f"({walk.integer})blocks * {THREADS}"
    return block(f"for ({start}; g < {count}; g += {step})", *inside, *visit(walk, 0))

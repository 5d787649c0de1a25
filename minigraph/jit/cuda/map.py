"""The CUDA text of kernels that reduce nothing.

The text of x * y + 1 for contiguous arrays, in outline:

    static __forceinline__ void BODY(const long long *w, int64_t block, ...) {
      ...                                                where the operands are
      for (int64_t g = block * 256 + threadIdx.x; g < groups; g += blocks * 256) {
        const int64_t column = g * 4;
        float p0[4], p1[4], p2[4];
        mg_load<4>(p0, base0 + column * 4, n, vector);   16 bytes at once
        mg_load<4>(p1, base1 + column * 4, n, vector);
        for (int u = 0; u < 4; u++) { ...; p2[u] = v3; }
        mg_store<4>(base2 + column * 4, p2, n, vector);
      }
    }

A transposed operand is read in the tiles that the axes were cut into, by way of the caches.
"""

from __future__ import annotations

from minigraph.jit.c.body import declare
from minigraph.jit.cuda.thread import THREADS, bases, part, position, visit
from minigraph.jit.cuda.walk import Walk
from minigraph.jit.emitter import block
from minigraph.jit.expression import takes_index


def body(walk: Walk) -> tuple[str, int]:
    """Return the function BODY, and how many shared words it needs: none."""
    pattern = walk.pattern
    setup = [
        *(f"const int64_t {name} = {walk.option(name)};" for name in walk.options),
        f"const int64_t inner = {walk.extent(walk.innermost)};",
        *bases(walk, ()),
        *(declare(pattern, v, "0") for v in pattern.once),
    ]
    inside = position(walk, "g")
    if any(value.op is not None and takes_index(value.op) for value in pattern.values):
        flat = "0"
        for d in walk.rows:
            flat = f"({flat} * {walk.extent(d)} + i{d})"
        inside.append(f"const int64_t begin = {flat} * inner + column;")
    inside += visit(walk, 0)
    loop = f"for (int64_t g = block * {THREADS} + threadIdx.x; g < groups; g += blocks * {THREADS})"
    return part([*setup, *block(loop, *inside)], ("vector", "inner", "cells")), 0

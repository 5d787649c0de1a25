"""The CUDA text of launches: one kernel, or several independent ones together.

Kernels that reduce nothing are written here, too.  That of x * y + 1 for contiguous arrays, in
outline:

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

If addresses or rows are no multiple of a group, all elements are loaded one by one, neighbours by
neighbouring threads.

A transposed operand is read in tiles through the caches.  A group is inside of a window, or outside
of it and then loaded as zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from minigraph.jit.cuda import reduction
from minigraph.jit.cuda.thread import THREADS, bases, declare, part, position, visit, whole_groups
from minigraph.jit.cuda.walk import Walk
from minigraph.jit.emitter import block
from minigraph.jit.expression import takes_index
from minigraph.jit.small_float import working
from minigraph.jit.source import KernelSource

# What stands before all kernels of a program.  NVRTC has no headers of the C library, but its
# mathematical functions and `memcpy`.  Functions need no `__device__`: the compiler is told that
# all are for the device, so that the ops' C functions serve as they are.
PRELUDE = Path(__file__).with_name("prelude.cu").read_text()

_ENTRY = """
struct NAME_args { long long w[%(words)d]; };
extern "C" __global__ void __launch_bounds__(%(bounds)s)
NAME(const __grid_constant__ NAME_args a) {
%(body)s
}
"""


@functools.lru_cache(4096)
def cuda_source(walk: Walk) -> KernelSource:
    """Return the text of a kernel and the functions that it calls."""
    body, cells = _body(walk)
    call = "  NAME_part(a.w, blockIdx.x, gridDim.x, cells);"
    whole = body.replace("BODY", "NAME_part") + _entry(walk.words, cells, call, walk.resident)
    return KernelSource(whole, _functions([walk]))


def together(walks: Sequence[Walk], counts: Sequence[int]) -> KernelSource:
    """Return the source of a launch of independent kernels: `counts[i]` of `walks[i]`.

    Its words are the first block of each kernel, the number of all blocks, the offset of the words
    of each kernel, and these words.
    """
    total = sum(counts)
    bodies, needed, calls = [], 0, []
    first = words = 0
    for i, (walk, count) in enumerate(zip(walks, counts, strict=True)):
        body, cells = _body(walk)
        bodies.append(body.replace("BODY", f"NAME_part{i}"))
        needed = max(needed, cells)
        first, words = first + count, words + count * walk.words
        condition = f"if (t < {first}) " if i < len(walks) - 1 else ""
        other = "else " if i else ""
        calls.append(
            f"  {other}{condition}NAME_part{i}(w, blockIdx.x - a.w[t], a.w[t + 1] - a.w[t], cells);"
        )
    member = [
        f"  const int t = mg_kernel_of_block(a.w, {total}, blockIdx.x);",
        f"  const long long *const w = a.w + a.w[{total + 1} + t];",
    ]
    entry = _entry(2 * total + 1 + words, needed, "\n".join([*member, *calls]))
    return KernelSource("\n".join(bodies) + entry, _functions(walks))


def _body(walk: Walk) -> tuple[str, int]:
    """Return the function BODY, and how many shared words it needs."""
    return reduction.body(walk) if walk.shared else (_map(walk), 0)


def _entry(words: int, cells: int, body: str, resident: int = 0) -> str:
    shared = f"  __shared__ long long cells[{cells}];\n" if cells else ""
    body = shared + (body if cells else body.replace("cells", "nullptr"))
    bounds = f"{THREADS}, {resident}" if resident else f"{THREADS}"
    return _ENTRY % {"words": words, "bounds": bounds, "body": body}


def _functions(walks: Iterable[Walk]) -> tuple[str, ...]:
    """Return the functions that the kernels' ops call: conversions stand in the prelude."""
    return tuple(dict.fromkeys(text for walk in walks for text in walk.pattern.functions(working)))


def _map(walk: Walk) -> str:
    """Return the function BODY of a kernel that reduces nothing."""
    setup = [
        *(f"const {walk.integer} {name} = {walk.option(name)};" for name in walk.options),
        f"const {walk.integer} inner = {walk.extent(walk.innermost)};",
        *whole_groups(walk),
        *bases(walk, ()),
        *(declare(walk, v, "0") for v in walk.pattern.once),
        *(_loop(walk, "groups") if walk.group > 1 else ()),
        f"const {walk.integer} begun = whole * {walk.group};",
        *_loop(replace(walk, most=1), "singles"),
    ]
    return part(setup, ("vector", "groups", "cells"))


def _loop(walk: Walk, count: str) -> list[str]:
    """Return the loop over groups, or over single elements."""
    pattern = walk.pattern
    inside = position(walk, "g")
    if any(takes_index(value.op) for value in pattern.values):
        flat = "(int64_t)0"
        for d in walk.rows:
            flat = f"({flat} * {walk.extent(d)} + i{d})"
        inside.append(f"const int64_t begin = {flat} * inner + column;")
    start = f"{walk.integer} g = ({walk.integer})block * {THREADS} + threadIdx.x"
    step = f"({walk.integer})blocks * {THREADS}"
    return block(f"for ({start}; g < {count}; g += {step})", *inside, *visit(walk, 0))

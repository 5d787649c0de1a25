"""The CUDA text of launches: one kernel, or several independent ones together."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from minigraph.jit.cuda import map, reduction
from minigraph.jit.cuda.thread import THREADS
from minigraph.jit.cuda.walk import Walk
from minigraph.jit.expression import support
from minigraph.jit.small_float import working

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

# Which kernel a block works for: the table has the first block of each, and the end.
_MEMBER = """
static __forceinline__ int mg_member(const long long *first, int count, long long block) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first[middle] <= block) low = middle; else high = middle;
  }
  return low;
}"""


@functools.lru_cache(4096)
def text(walk: Walk) -> tuple[tuple[str, ...], str]:
    """Return the functions that a kernel needs, and the kernel, called NAME."""
    body, cells = _body(walk)
    call = "  NAME_part(a.w, blockIdx.x, gridDim.x, cells);"
    whole = body.replace("BODY", "NAME_part") + _entry(walk.words, cells, call, walk.resident)
    return _support([walk]), whole


def together(walks: Sequence[Walk], counts: Sequence[int]) -> tuple[tuple[str, ...], str]:
    """Return the text of a launch of independent kernels: `counts[i]` of `walks[i]`.

    Its words are the first block of each kernel, the number of all blocks, where the words of each
    kernel begin, and then these, kernel by kernel.
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
        f"  const int t = mg_member(a.w, {total}, blockIdx.x);",
        f"  const long long *const w = a.w + a.w[{total + 1} + t];",
    ]
    entry = _entry(2 * total + 1 + words, needed, "\n".join([*member, *calls]))
    return (*_support(walks), _MEMBER.strip()), "\n".join(bodies) + entry


def _body(walk: Walk) -> tuple[str, int]:
    return reduction.body(walk) if walk.shared else map.body(walk)


def _entry(words: int, cells: int, body: str, resident: int = 0) -> str:
    shared = f"  __shared__ long long cells[{cells}];\n" if cells else ""
    body = shared + (body if cells else body.replace("cells", "nullptr"))
    bounds = f"{THREADS}, {resident}" if resident else f"{THREADS}"
    return _ENTRY % {"words": words, "bounds": bounds, "body": body}


def _support(walks: Iterable[Walk]) -> tuple[str, ...]:
    """Return the functions that elementwise ops of the kernels need, each once."""
    needs: dict[str, None] = {}
    for walk in walks:
        for value in walk.pattern.values:
            if value.op is not None and not value.reduces:
                # Conversions to and from floats of 16 bits stand in the prelude.
                operands = [working(walk.pattern.values[a].dtype) for a in value.args]
                needs.update(dict.fromkeys(support(value.op, operands, working(value.dtype))))
    return tuple(needs)

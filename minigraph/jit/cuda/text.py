"""The CUDA text of launches: one kernel, or several independent ones together.

Kernels that reduce nothing are written here, too.  That of x * y + 1 for contiguous arrays, in
outline:

    static __forceinline__ void BODY(const long long *w, int64_t block, ...) {
      ...                                                addresses of the operands
      for (int g = block * 256 + threadIdx.x; g < groups; g += blocks * 256) {
        const int column = g * 4;
        float p0[4], p1[4], p2[4];
        mg_load<4>(p0, base0 + column * 4);              a vector of 16 bytes
        mg_load<4>(p1, base1 + column * 4);
        for (int u = 0; u < 4; u++) { ...; p2[u] = v3; }
        mg_store<4>(base2 + column * 4, p2);
      }
      ...                                                the elements that are left, one by one
    }

If the operands or their rows are not aligned for vectors, threads load single elements, coalesced.

A transposed operand is read in tiles that fit the caches.  A group is inside a window, or outside
and loaded as zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from minigraph.jit.cuda import reduction
from minigraph.jit.cuda.thread import (
    THREADS,
    bases,
    body_function,
    declare,
    position,
    visit,
    whole_groups,
)
from minigraph.jit.cuda.thread_mapping import ThreadMapping
from minigraph.jit.emitter import block
from minigraph.jit.expression import takes_index
from minigraph.jit.small_float import compute_dtype
from minigraph.jit.source import KernelSource

# The prelude of a program.  NVRTC has no headers of the C library, only its mathematical functions
# and `memcpy`.  A compiler flag makes all functions device functions, so the C functions of ops
# need no `__device__`.
PRELUDE = Path(__file__).with_name("prelude.cu").read_text()

_ENTRY = """
struct NAME_args { long long w[%(words)d]; };
extern "C" __global__ void __launch_bounds__(%(bounds)s)
NAME(const __grid_constant__ NAME_args a) {
%(body)s
}
"""


@functools.lru_cache(4096)
def cuda_source(mapping: ThreadMapping) -> KernelSource:
    """Return the text of a kernel and the functions that it calls."""
    body, words_shared = _body(mapping)
    call = "  NAME_part(a.w, blockIdx.x, gridDim.x, shared);"
    text = body.replace("BODY", "NAME_part") + _entry(
        mapping.words, words_shared, call, mapping.resident
    )
    return KernelSource(text, _functions([mapping]))


def horizontal_source(mappings: Sequence[ThreadMapping], counts: Sequence[int]) -> KernelSource:
    """Return the source of a launch of independent kernels: `counts[i]` of `mappings[i]`.

    Its words are the first block of each kernel, the number of all blocks, the offset of each
    kernel's words, and the words of all kernels.
    """
    total = sum(counts)
    bodies, shared, calls = [], 0, []
    begin = words = 0
    for i, (mapping, count) in enumerate(zip(mappings, counts, strict=True)):
        body, words_shared = _body(mapping)
        bodies.append(body.replace("BODY", f"NAME_part{i}"))
        shared = max(shared, words_shared)
        begin, words = begin + count, words + count * mapping.words
        condition = f"if (t < {begin}) " if i < len(mappings) - 1 else ""
        otherwise = "else " if i else ""
        grid = "blockIdx.x - a.w[t], a.w[t + 1] - a.w[t]"
        calls.append(f"  {otherwise}{condition}NAME_part{i}(w, {grid}, shared);")
    member = [
        f"  const int t = mg_kernel_of_block(a.w, {total}, blockIdx.x);",
        f"  const long long *const w = a.w + a.w[{total + 1} + t];",
    ]
    entry = _entry(2 * total + 1 + words, shared, "\n".join([*member, *calls]))
    return KernelSource("\n".join(bodies) + entry, _functions(mappings))


def _body(mapping: ThreadMapping) -> tuple[str, int]:
    """Return the function BODY, and the number of words of shared memory that it needs."""
    return reduction.body(mapping) if mapping.shared else (_map(mapping), 0)


def _entry(words: int, words_shared: int, body: str, resident: int = 0) -> str:
    if words_shared:
        body = f"  __shared__ long long shared[{words_shared}];\n{body}"
    else:
        body = body.replace("shared", "nullptr")
    bounds = f"{THREADS}, {resident}" if resident else f"{THREADS}"
    return _ENTRY % {"words": words, "bounds": bounds, "body": body}


def _functions(mappings: Iterable[ThreadMapping]) -> tuple[str, ...]:
    """Return the functions that the kernels' ops call; conversions are in the prelude."""
    texts = (text for mapping in mappings for text in mapping.pattern.functions(compute_dtype))
    return tuple(dict.fromkeys(texts))


def _map(mapping: ThreadMapping) -> str:
    """Return the function BODY of a kernel that reduces nothing."""
    setup = [
        *(f"const {mapping.integer} {name} = {mapping.option(name)};" for name in mapping.options),
        f"const {mapping.integer} inner = {mapping.extent(mapping.innermost)};",
        *whole_groups(mapping),
        *bases(mapping, ()),
        *(declare(mapping, v, "0") for v in mapping.pattern.unit_values),
        *(_loop(mapping, "groups") if mapping.group > 1 else ()),
        f"const {mapping.integer} tail_begin = row_groups * {mapping.group};",
        *_loop(replace(mapping, max_group=1), "singles"),
    ]
    return body_function(setup, ("aligned", "groups", "shared"))


def _loop(mapping: ThreadMapping, count: str) -> list[str]:
    """Return the loop over groups, or over single elements."""
    pattern = mapping.pattern
    lines = position(mapping, "g")
    if any(takes_index(value.op) for value in pattern.values):
        flat = "(int64_t)0"
        for d in mapping.rows:
            flat = f"({flat} * {mapping.extent(d)} + i{d})"
        lines.append(f"const int64_t begin = {flat} * inner + column;")
    start = f"{mapping.integer} g = ({mapping.integer})block * {THREADS} + threadIdx.x"
    step = f"({mapping.integer})blocks * {THREADS}"
    return block(f"for ({start}; g < {count}; g += {step})", *lines, *visit(mapping, 0))

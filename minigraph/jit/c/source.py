"""The C text of a kernel."""

from __future__ import annotations

import functools

from minigraph.jit.c.columns import column_text
from minigraph.jit.c.lanes import lane_text
from minigraph.jit.c.narrow import joins, narrow_text
from minigraph.jit.c.pieces import PUT_BFLOAT16, rounded
from minigraph.jit.c.rows import folds, row_text
from minigraph.jit.expression import support
from minigraph.jit.pattern import KernelPattern
from minigraph.jit.source import KernelSource


@functools.lru_cache(4096)
def c_source(pattern: KernelPattern) -> KernelSource:
    """Return the text of the kernel and the functions that it calls."""
    if pattern.form == "column":
        return KernelSource(column_text(pattern), functions_of(pattern))
    if pattern.form == "lane":
        return KernelSource(lane_text(pattern), functions_of(pattern))
    text, own = (narrow_text, joins) if pattern.narrow else (row_text, folds)
    shared = dict.fromkeys([*functions_of(pattern), *own(pattern)])
    return KernelSource(text(pattern), tuple(shared))


def functions_of(pattern: KernelPattern) -> tuple[str, ...]:
    """Return the functions that a kernel's expressions call, which are inlined wherever they are.

    Else compilers would call those that are long, and the loop would not be computed in vectors.
    """
    needs: dict[str, None] = {}
    for value in pattern.values:
        if value.op is not None and not value.reduces:
            operands = [pattern.values[a].dtype for a in value.args]
            for text in support(value.op, operands, value.dtype):
                needs[text.replace("static inline ", "MG_INLINE ")] = None
    if any(rounded(pattern, stage) for stage in range(pattern.stages)):
        needs[PUT_BFLOAT16] = None
    return tuple(needs)

"""The C text of a kernel."""

from __future__ import annotations

import functools

from minigraph.jit.c.buffers import STORE_BFLOAT16, rounded
from minigraph.jit.c.columns import column_text
from minigraph.jit.c.lanes import lane_text
from minigraph.jit.c.narrow import fold_rows, narrow_text
from minigraph.jit.c.rows import fold, row_text
from minigraph.jit.pattern import KernelPattern
from minigraph.jit.source import KernelSource


@functools.lru_cache(4096)
def c_source(pattern: KernelPattern) -> KernelSource:
    """Return the text of the kernel and the functions that it calls."""
    functions = _functions(pattern)
    if pattern.form == "column":
        return KernelSource(column_text(pattern), tuple(functions))
    if pattern.form == "lane":
        return KernelSource(lane_text(pattern), tuple(functions))
    text, combine = (narrow_text, fold_rows) if pattern.narrow else (row_text, fold)
    combined = (combine(pattern, v) for v in pattern.reductions)
    return KernelSource(text(pattern), tuple(dict.fromkeys([*functions, *combined])))


def _functions(pattern: KernelPattern) -> list[str]:
    """Return the C functions that a kernel's expressions call.

    They are always inlined, because a loop with a call is not vectorised.
    """
    functions = [text.replace("static inline ", "MG_INLINE ") for text in pattern.functions()]
    rounds = any(rounded(pattern, stage) for stage in range(pattern.stages))
    return [*functions, STORE_BFLOAT16] if rounds else functions

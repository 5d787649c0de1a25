"""The C text of a kernel."""

from __future__ import annotations

import functools

from minigraph.jit.c import columns, lanes, rows
from minigraph.jit.expression import support
from minigraph.jit.kernel import KernelPattern


@functools.lru_cache(4096)
def text(pattern: KernelPattern) -> tuple[tuple[str, ...], str]:
    """Return the C functions that the kernel needs, and the kernel, called NAME."""
    needs: dict[str, None] = {}
    for value in pattern.values:
        if value.op is not None and not value.reduces:
            operands = [pattern.values[a].dtype for a in value.args]
            needs.update(dict.fromkeys(support(value.op, operands, value.dtype)))
    form = {"column": columns, "lane": lanes}.get(pattern.form, rows)
    return tuple(needs), form.text(pattern)

"""C statements for outputs that a run over the loops writes to a small buffer first.

The buffer is then copied with streaming stores if the output does not fit the caches, or rounded to
bfloat16, because in a loop with other ops the rounding would take most of the time.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from minigraph.graph import BFLOAT16
from minigraph.jit.expression import c_type, expression, is_exact
from minigraph.jit.macros import with_macros
from minigraph.jit.pattern import ELEMENT, KernelPattern

BUFFER = 256  # elements of a buffer
MAX_LONG_BUFFERS = 16  # outputs with buffers of BUFFER elements, at most
SHORT_BUFFER = 64  # elements of a buffer if there are more outputs, so that all fit the stack

STORE_BFLOAT16 = with_macros(
    Path(__file__).with_name("store_bfloat16.c").read_text(), BUFFER=BUFFER
)


def buffered(pattern: KernelPattern, stage: int) -> list[int]:
    """Return the outputs that a run over the loops may write with streaming stores."""
    if pattern.reduced(stage):
        return []
    return [k for k in pattern.stored(stage) if pattern.accesses[k] == "unit"]


def buffer_length(outputs: list[int]) -> int:
    """Return the number of elements of the buffers of these outputs."""
    return BUFFER if len(outputs) <= MAX_LONG_BUFFERS else SHORT_BUFFER


def declare_stream(pattern: KernelPattern, stage: int) -> list[str]:
    """Return the declaration of `stream`: whether a run writes its outputs with streaming stores.

    The run uses none if an output overwrites an input, because its cache lines are loaded then.
    """
    outputs = buffered(pattern, stage)
    inputs = [k for k in range(pattern.inputs) if pattern.accesses[k] == "unit"]
    distinct = [
        f"base{k} != base{i}"
        for k, i in itertools.product(outputs, inputs)
        if pattern.dtypes[k].itemsize == pattern.dtypes[i].itemsize
    ]
    return [f"const int64_t stream = {' && '.join(['a[4]', *distinct])};"] if outputs else []


def fence(pattern: KernelPattern) -> list[str]:
    """Return the fence after the last unit, which waits for streaming stores.

    No unit reads the outputs of another.  A fence after each unit made softmax of rows of 64
    elements three times slower.
    """
    streams = any(buffered(pattern, stage) for stage in range(pattern.stages))
    return ["if (a[4]) mg_fence();"] if streams else []


def rounded(pattern: KernelPattern, stage: int) -> list[int]:
    """Return the outputs that a run over the loops rounds to bfloat16 from a buffer."""
    kept_before, outputs = pattern.kept_before(stage), []
    for k in buffered(pattern, stage):
        v, value = pattern.source(k), pattern.values[pattern.source(k)]
        computed = value.op is not None and value.level == ELEMENT and v not in kept_before
        if computed and pattern.dtypes[k] == BFLOAT16 and not is_exact(value.op, value.dtype):
            outputs.append(k)
    return outputs


def declare_buffer(pattern: KernelPattern, stage: int, k: int, begin: str) -> list[str]:
    """Return the declarations of the buffer of output `k`, and of the pointer `out` to write to.

    begin  C expression for the row's element that is first in the buffer
    """
    length = buffer_length(buffered(pattern, stage))
    if k in rounded(pattern, stage):
        return [f"float buffer{k}[{length}];", f"float *out{k} = buffer{k} - {begin};"]
    ctype = c_type(pattern.dtypes[k])
    out = f"{ctype} *out{k} = stream ? buffer{k} - {begin} : p{k};"
    return [f"{ctype} buffer{k}[{length}];", out]


def store_element(pattern: KernelPattern, stage: int, k: int, index: str) -> str:
    """Return the statement that stores an element in a buffer, or in memory without a buffer."""
    v = pattern.source(k)
    right = f"v{v}"
    if k in rounded(pattern, stage):
        value = pattern.values[v]
        assert value.op is not None
        operands = pattern.operand_dtypes(value)
        args = [f"v{a}" for a in value.args]
        right = expression(value.op, operands, value.dtype, args, rounded=False)
    return f"out{k}[{index}] = {right};"


def flush_buffer(pattern: KernelPattern, stage: int, k: int, begin: str, count: str) -> str:
    """Return the statement that writes `count` elements of a buffer to memory."""
    if k in rounded(pattern, stage):
        return f"mg_store_bfloat16(p{k} + {begin}, buffer{k}, {count}, stream);"
    return f"if (stream) mg_stream_copy(p{k} + {begin}, buffer{k}, ({count}) * sizeof *buffer{k});"

"""C statements for outputs that a run over the loops computes in pieces, into a buffer.

From the buffer an output that does not fit the caches is streamed past them, and floats are rounded
to bfloat16: in a loop with other ops the rounding would take most of the time.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from minigraph.graph import BFLOAT16
from minigraph.jit.expression import c_type, expression, is_exact
from minigraph.jit.macros import with_macros
from minigraph.jit.pattern import ELEMENT, KernelPattern

PIECE = 256  # elements of a piece
MANY = 16  # outputs with pieces of PIECE elements, at most
FEW = 64  # elements of a piece of more outputs, so that all pieces fit the stack

PUT_BFLOAT16 = with_macros(Path(__file__).with_name("put_bfloat16.c").read_text(), PIECE=PIECE)


def streamed(pattern: KernelPattern, stage: int) -> list[int]:
    """Return the outputs that a run over the loops may stream past the caches."""
    if pattern.reduced(stage):
        return []
    return [k for k in pattern.stored(stage) if pattern.accesses[k] == "unit"]


def piece_length(streams: list[int]) -> int:
    """Return the number of elements of the pieces of these outputs."""
    return PIECE if len(streams) <= MANY else FEW


def whether_to_stream(pattern: KernelPattern, stage: int) -> list[str]:
    """Return the declaration of `stream`, whether a run streams its outputs.

    It does not stream if an output overwrites an input, whose lines are in the caches then.
    """
    outputs = streamed(pattern, stage)
    inputs = [k for k in range(pattern.inputs) if pattern.accesses[k] == "unit"]
    apart = [
        f"base{k} != base{i}"
        for k, i in itertools.product(outputs, inputs)
        if pattern.dtypes[k].itemsize == pattern.dtypes[i].itemsize
    ]
    return [f"const int64_t stream = {' && '.join(['a[4]', *apart])};"] if outputs else []


def until_streamed(pattern: KernelPattern) -> list[str]:
    """Return the statement that waits, after the last unit, until streamed outputs are in memory.

    No unit reads the outputs of another.  Waiting after each unit made softmax of rows of 64
    elements three times slower.
    """
    streams = any(streamed(pattern, stage) for stage in range(pattern.stages))
    return ["if (a[4]) mg_fence();"] if streams else []


def rounded(pattern: KernelPattern, stage: int) -> list[int]:
    """Return the outputs that a run over the loops rounds to bfloat16 in pieces."""
    kept, found = pattern.kept_before(stage), []
    for k in streamed(pattern, stage):
        v, value = pattern.source(k), pattern.values[pattern.source(k)]
        computed = value.op is not None and value.level == ELEMENT and v not in kept
        if computed and pattern.dtypes[k] == BFLOAT16 and not is_exact(value.op, value.dtype):
            found.append(k)
    return found


def piece(pattern: KernelPattern, stage: int, k: int, begin: str) -> list[str]:
    """Return the declarations of a piece and of a pointer to it, shifted by `begin` elements."""
    length = piece_length(streamed(pattern, stage))
    if k in rounded(pattern, stage):
        return [f"float piece{k}[{length}];", f"float *out{k} = piece{k} - {begin};"]
    held = c_type(pattern.dtypes[k])
    return [f"{held} piece{k}[{length}];", f"{held} *out{k} = stream ? piece{k} - {begin} : p{k};"]


def put_element(pattern: KernelPattern, stage: int, k: int, index: str) -> str:
    """Return the statement that stores an element in a piece, or in memory if there is none."""
    v = pattern.source(k)
    right = f"v{v}"
    if k in rounded(pattern, stage):
        value = pattern.values[v]
        assert value.op is not None
        operands = [pattern.values[a].dtype for a in value.args]
        args = [f"v{a}" for a in value.args]
        right = expression(value.op, operands, value.dtype, args, rounded=False)
    return f"out{k}[{index}] = {right};"


def put_piece(pattern: KernelPattern, stage: int, k: int, begin: str, count: str) -> str:
    """Return the statement that writes a piece of `count` elements to memory."""
    if k in rounded(pattern, stage):
        return f"mg_put_bfloat16(p{k} + {begin}, piece{k}, {count}, stream);"
    return f"if (stream) mg_stream(p{k} + {begin}, piece{k}, ({count}) * sizeof *piece{k});"

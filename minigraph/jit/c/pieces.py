"""C statements for outputs that a run over the loops computes piece by piece, into a buffer.

An output that does not fit the caches is streamed past them from there.  Floats are rounded to
bfloat16 from there, many at a time: in a loop with other ops the rounding takes most of the time.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from minigraph.graph import BFLOAT16
from minigraph.jit.expression import c_type, expression, is_exact
from minigraph.jit.macros import with_macros
from minigraph.jit.pattern import ELEMENT, KernelPattern

PIECE = 256  # elements of a piece, at most
FEW = 64  # where there are more outputs than MANY, so that their pieces fit any stack
MANY = 16

PUT_BFLOAT16 = with_macros(Path(__file__).with_name("put_bfloat16.c").read_text(), PIECE=PIECE)


def streamed(pattern: KernelPattern, stage: int) -> list[int]:
    """Return the outputs that a run over the loops may stream past the caches."""
    if pattern.reduced(stage):
        return []
    return [k for k in pattern.stored(stage) if pattern.accesses[k] == "unit"]


def piece_length(streams: list[int]) -> int:
    """Return how many elements a piece of each of these outputs has."""
    return PIECE if len(streams) <= MANY else FEW


def whether_to_stream(pattern: KernelPattern, stage: int) -> list[str]:
    """Return the statement that says whether a run streams its outputs, if it may.

    It does not where one overwrites an input, whose lines are in the caches when they are written.
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
    """Return the statement that waits, after the last unit, until outputs are in memory.

    No unit reads what another streamed.  A wait in each unit made softmax of rows of 64 elements
    take three times as long.
    """
    streams = any(streamed(pattern, stage) for stage in range(pattern.stages))
    return ["if (a[4]) mg_fence();"] if streams else []


def rounded(pattern: KernelPattern, stage: int) -> list[int]:
    """Return the outputs that a run over the loops rounds to bfloat16, by pieces of floats."""
    there, found = pattern.there(stage), []
    for k in streamed(pattern, stage):
        v, value = pattern.source(k), pattern.values[pattern.source(k)]
        made = value.op is not None and value.level == ELEMENT and v not in there
        if made and pattern.dtypes[k] == BFLOAT16 and not is_exact(value.op, value.dtype):
            found.append(k)
    return found


def piece(pattern: KernelPattern, stage: int, k: int, begin: str) -> list[str]:
    """Return the declarations of a piece, and of where the element `begin` of the row goes."""
    length = piece_length(streamed(pattern, stage))
    if k in rounded(pattern, stage):
        return [f"float piece{k}[{length}];", f"float *out{k} = piece{k} - {begin};"]
    held = c_type(pattern.dtypes[k])
    return [f"{held} piece{k}[{length}];", f"{held} *out{k} = stream ? piece{k} - {begin} : p{k};"]


def put_element(pattern: KernelPattern, stage: int, k: int, index: str) -> str:
    """Return the statement that puts an element into a piece, or where there is none."""
    v = pattern.source(k)
    made = f"v{v}"
    if k in rounded(pattern, stage):
        value = pattern.values[v]
        assert value.op is not None
        operands = [pattern.values[a].dtype for a in value.args]
        args = [f"v{a}" for a in value.args]
        made = expression(value.op, operands, value.dtype, args, rounded=False)
    return f"out{k}[{index}] = {made};"


def put_piece(pattern: KernelPattern, stage: int, k: int, begin: str, count: str) -> str:
    """Return the statement that puts a piece of so many elements where it belongs."""
    if k in rounded(pattern, stage):
        return f"mg_put_bfloat16(p{k} + {begin}, piece{k}, {count}, stream);"
    return f"if (stream) mg_stream(p{k} + {begin}, piece{k}, ({count}) * sizeof *piece{k});"

"""Memory planning: in-place updates and results, and offsets in one arena.

Intermediate results share the arena by their lifetimes, so a call allocates only the arrays that
it returns.
"""

from __future__ import annotations

import itertools
from collections.abc import Container
from typing import NamedTuple

import numpy as np

from minigraph.errors import CompileError
from minigraph.graph import Graph, Item, Node
from minigraph.program import Buffer, MemorySpace, Program, View, round_up

MAX_SHORT_LIFETIME = 100  # steps; the few results that live longer are compared with all others
MAX_NAMED_RESULTS = 3  # results that a message about missing memory names


def plan(program: Program, sliced: Container[Node | None] = ()) -> Program:
    """Assign memory to the buffers of a program, and return the program.

    sliced  inputs of a loop's body that are slices of arrays outside of it
    """
    update_in_place(program)
    share_in_place(program)
    assign_offsets(program)
    check_offsets(program, sliced)
    return program


def update_in_place(program: Program) -> None:
    """Let steps write new values of parameters into the parameters.

    That requires that no later step reads the old value, and that no later step can raise an error
    for its input, as a call that fails must leave all parameters unchanged.
    """
    last_check = program.steps.index(program.checks[-1]) if program.checks else -1
    returned = {view.buffer for view in program.outputs}
    current = {b.node: b for b in program.buffers if b.space is MemorySpace.PARAMETER}
    not_in_place = []
    for parameter, view in program.updates:
        new, old = view.buffer, current.get(parameter)
        fills_buffer = view.contiguous and new.nbytes == view.spec.nbytes
        in_place = new.space is MemorySpace.ARENA and fills_buffer and new.first > last_check
        if in_place and old:
            is_last_use = old.last == new.first and _can_overwrite(program, old, new)
            in_place = old not in returned and (old.last < new.first or is_last_use)
        if in_place:
            new.space, new.node = MemorySpace.PARAMETER, parameter
        else:
            not_in_place.append((parameter, view))
    program.updates = not_in_place


def _can_overwrite(program: Program, old: Buffer, new: Buffer) -> bool:
    """Whether the step that makes `new` may write it over `old`, which it reads."""
    step = program.steps[new.first]
    reads, outputs = step.reads.get(old, ()), step.writes[new]
    return (
        len(outputs) == 1
        and all(
            outputs[0] in step.kernel.may_overwrite(i) and step.inputs[i].offset == 0 for i in reads
        )
        and old.nbytes == new.nbytes
    )


def share_in_place(program: Program) -> None:
    """Let an output of a step take over the memory of an input whose last use is that step."""
    for now, step in enumerate(program.steps):
        # A horizontally fused update has thousands of inputs and outputs, of which few qualify.
        inputs = dict.fromkeys(view.buffer for view in step.inputs)
        unshared = (b for b in inputs if b.last == now and not b.successor)
        last_used = [b for b in unshared if b.space is MemorySpace.ARENA]
        for new in (output.buffer for output in step.outputs) if last_used else ():
            if new.space is not MemorySpace.ARENA or not new.nbytes:
                continue
            old = next((old for old in last_used if _can_overwrite(program, old, new)), None)
            if old:
                old.successor = new
                last_used.remove(old)


def assign_offsets(program: Program) -> None:
    """Assign an offset to each buffer of the arena; buffers that live at once do not overlap.

    Buffers are placed by size, the largest first, at the lowest offset that is free for their life.
    """
    lifetimes = _lifetimes(program)  # in the order of their first steps
    first = np.array([life.first for life in lifetimes], np.int64)
    last = np.array([life.last for life in lifetimes], np.int64)
    long = np.flatnonzero(last - first > MAX_SHORT_LIFETIME)
    begin, end = np.zeros((2, len(lifetimes)), np.int64)  # an end of 0: not placed yet
    for i in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].size):
        nearby = np.arange(*first.searchsorted((first[i] - MAX_SHORT_LIFETIME, last[i] + 1)))
        others = np.concatenate([long, nearby[last[nearby] - first[nearby] <= MAX_SHORT_LIFETIME]])
        alive = (first[others] <= last[i]) & (first[i] <= last[others]) & (end[others] > 0)
        overlapping = others[alive]
        overlapping = overlapping[begin[overlapping].argsort()]
        free = np.append(0, np.maximum.accumulate(end[overlapping]))
        fits = begin[overlapping] - free[:-1] >= lifetimes[i].size
        begin[i] = free[fits.argmax() if fits.any() else -1]
        end[i] = begin[i] + lifetimes[i].size
        for buffer in lifetimes[i].buffers:
            buffer.offset = int(begin[i])
    program.arena_bytes = int(end.max(initial=0))


def check_offsets(program: Program, sliced: Container[Node | None] = ()) -> None:
    """Raise CompileError unless every view lies inside of its buffer."""
    for buffer in program.buffers:
        end = buffer.offset + buffer.nbytes
        if buffer.offset < 0 or (buffer.space is MemorySpace.ARENA and end > program.arena_bytes):
            raise CompileError(f"bytes {buffer.offset} to {end} are not in the arena")
    for step in program.steps:
        for view in (*step.inputs, *step.outputs):
            _check_view(view, sliced, f"{step.node.op.name} {step.node.source}")
    for view in (*program.outputs, *(view for _, view in program.updates)):
        _check_view(view, sliced, "an output or update")


def _check_view(view: View, sliced: Container[Node | None], what: str) -> None:
    buffer, nbytes = view.buffer, view.spec.nbytes
    is_whole = not view.offset and nbytes <= buffer.nbytes and view.strides == view.spec.strides
    if is_whole or not nbytes or buffer.node in sliced:
        return
    first_byte = view.offset - view.lead
    if first_byte < 0 or first_byte + view.extent > buffer.nbytes:
        raise CompileError(
            f"{what}: {view.spec} at byte {first_byte} exceeds its buffer of {buffer.nbytes} bytes"
        )


def predicted_arena_bytes(graph: Graph, amp: str) -> int:
    """Return a lower estimate of the arena's size before the graph is optimised.

    Fusion saves up to half of the unoptimised graph's peak; with `amp`, small types save half of
    the rest.  Results with the shape of a parameter do not count, as updates run as soon as
    possible.
    """
    order, outputs = graph.order, set(graph.outputs)
    parameters = {p.shape for p in graph.parameters}
    last_uses: dict[Node, int] = {}
    changes = [0] * (len(order) + 1)
    for now, node in reversed([*enumerate(order)]):
        last_use = last_uses.get(node, now)
        is_view = node.op.is_view or isinstance(node.op, Item)
        for x in node.inputs:
            last_uses[x] = max(last_uses.get(x, 0), last_use if is_view else now)
        if node.inputs and not is_view and node not in outputs:
            nbytes = sum(spec.nbytes for spec in node.specs if spec.shape not in parameters)
            changes[now] += nbytes
            changes[last_use + 1] -= nbytes
    return max(itertools.accumulate(changes)) // (2 if amp == "off" else 4)


def demand(program: Program) -> str:
    """Return a message with the memory that a program needs, and its largest results."""
    others = sum({b.node: b.nbytes for b in program.buffers if b.node is not None}.values())
    named = [f"{text} ({nbytes >> 20} MiB)" for text, nbytes in largest_results(program)]
    return (
        f"the step has {program.arena_bytes >> 20} MiB of intermediate results besides "
        f"{others >> 20} MiB of parameters, inputs and constants; a smaller batch needs less. "
        f"The largest: {'; '.join(named)}"
    )


def largest_results(program: Program, now: int | None = None) -> list[tuple[str, int]]:
    """Return descriptions of the largest intermediate results, with their bytes.

    now  if not None, only results that are alive at this step
    """
    results = {
        view.buffer: (f"{step.node.op.name} {view.spec} {step.node.source}", view.spec.nbytes)
        for step in program.steps
        for view in step.outputs
        if view.buffer.space is MemorySpace.ARENA
        and (now is None or view.buffer.first <= now <= view.buffer.last)
    }
    return sorted(results.values(), key=lambda named: -named[1])[:MAX_NAMED_RESULTS]


def fullest_step(program: Program) -> str:
    """Return a message with the step at which the most memory is in use, and its results."""
    usage = in_use(program)
    now = usage.index(max(usage))
    node, scratch = program.steps[now].node, program.steps[now].scratch.nbytes
    descriptions = [f"{text} ({nbytes} bytes)" for text, nbytes in largest_results(program, now)]
    scratch_text = [f"{scratch} bytes of scratch memory"] if scratch else []
    return (
        f"the fullest step, {node.op.name} {node.source}, uses {usage[now]} of them, the largest "
        f"for {'; '.join(descriptions + scratch_text)}"
    )


def in_use(program: Program) -> list[int]:
    """Return the bytes of the arena that are in use while each step runs."""
    changes = [0] * (len(program.steps) + 2)
    for life in _lifetimes(program):
        changes[life.first] += life.size
        changes[life.last + 1] -= life.size
    return [*itertools.accumulate(changes)][: len(program.steps)]


class Lifetime(NamedTuple):
    """Buffers that take over each other's memory, alive from step `first` to step `last`."""

    buffers: list[Buffer]
    size: int
    first: int
    last: int


def _lifetimes(program: Program) -> list[Lifetime]:
    buffers = [b for b in program.buffers if b.space is MemorySpace.ARENA and b.nbytes]
    successors = {b.successor for b in buffers if b.successor}
    lives = []
    for b in buffers:
        if b not in successors:
            chain = [b]
            while chain[-1].successor:
                chain.append(chain[-1].successor)
            lives.append(Lifetime(chain, round_up(b.nbytes), b.first, chain[-1].last))
    return sorted(lives, key=lambda life: (life.first, -life.size))

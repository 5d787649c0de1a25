"""The plan of a program's memory: what may be written in place, and where the rest goes.

Every intermediate gets a place in one arena by its lifetime, so that a call allocates nothing but
the arrays that it returns.
"""

from __future__ import annotations

import bisect

from minigraph.program import Buffer, Home, Program, round_up


def update_in_place(program: Program) -> None:
    """Let steps write new values of parameters where the parameters are.

    Allowed where nothing reads the old value later, and where no later step can refuse its input:
    a call that fails must leave all parameters as they were.
    """
    last_refusal = max((i for i, s in enumerate(program.steps) if s.kernel.refuses), default=-1)
    returned = {view.buffer for view in program.outputs}
    current = {b.node: b for b in program.buffers if b.home is Home.PARAMETER}
    copied = []
    for parameter, view in program.updates:
        new, old = view.buffer, current.get(parameter)
        made_here = new.home is Home.ARENA and view.contiguous and new.nbytes == view.spec.nbytes
        if (
            made_here
            and new.first > last_refusal
            and (old is None or (old not in returned and _reads_end(program, old, new)))
        ):
            new.home, new.node = Home.PARAMETER, parameter
        else:
            copied.append((parameter, view))
    program.updates = copied


def _reads_end(program: Program, old: Buffer, new: Buffer) -> bool:
    """Whether the step that writes `new` may overwrite `old`, which no later step reads."""
    return old.last < new.first or (old.last == new.first and _overwrites(program, old, new))


def _overwrites(program: Program, old: Buffer, new: Buffer) -> bool:
    """Whether the step that makes `new` reads `old` only at the place where it then writes."""
    step = program.steps[new.first]
    reads = [i for i, view in enumerate(step.inputs) if view.buffer is old]
    written = [i for i, view in enumerate(step.outputs) if view.buffer is new]
    return (
        len(written) == 1
        and all(written[0] in step.kernel.inplace[i] and step.inputs[i].offset == 0 for i in reads)
        and old.nbytes == new.nbytes
    )


def share_in_place(program: Program) -> None:
    """Let the output of a step take the memory of an input that is read there for the last time."""
    for now, step in enumerate(program.steps):
        for output in step.outputs:
            new = output.buffer
            for view in step.inputs:
                old = view.buffer
                if (
                    new.home is old.home is Home.ARENA
                    and old.last == now
                    and old.successor is None
                    and new.nbytes
                    and _overwrites(program, old, new)
                ):
                    old.successor = new
                    break


def plan(program: Program) -> None:
    """Give every buffer of the arena an offset; buffers that live at the same time do not overlap.

    Walks through time and takes the smallest hole that fits (best fit).
    """
    buffers = [b for b in program.buffers if b.home is Home.ARENA and b.nbytes]
    heirs = {b.successor for b in buffers if b.successor}
    ends: dict[int, list[Buffer]] = {}
    for b in buffers:
        if b.successor is None:
            ends.setdefault(b.last, []).append(b)
    holes = _Holes()
    time = 0
    for b in sorted(buffers, key=lambda b: (b.first, -b.nbytes)):
        while time < b.first:
            for dead in ends.get(time, ()):
                holes.release(dead.offset, round_up(dead.nbytes))
            time += 1
        if b not in heirs:
            b.offset = holes.take(round_up(b.nbytes))
        if b.successor:
            b.successor.offset = b.offset
    program.arena_bytes = holes.end


class _Holes:
    """The free pieces of an arena that grows at its end: sorted (offset, size), none adjacent."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []
        self.end = 0

    def take(self, size: int) -> int:
        fitting = [hole for hole in self.free if hole[1] >= size]
        if fitting:
            offset, length = min(fitting, key=lambda hole: hole[1])
            at = bisect.bisect_left(self.free, (offset, length))
            self.free[at : at + 1] = [(offset + size, length - size)] if length > size else []
            return offset
        if self.free and sum(self.free[-1]) == self.end:
            offset, _ = self.free.pop()  # the last hole grows beyond the end
        else:
            offset = self.end
        self.end = offset + size
        return offset

    def release(self, offset: int, size: int) -> None:
        at = bisect.bisect_left(self.free, (offset, size))
        if at < len(self.free) and self.free[at][0] == offset + size:
            size += self.free.pop(at)[1]
        if at and sum(self.free[at - 1]) == offset:
            at -= 1
            offset, length = self.free.pop(at)
            size += length
        self.free.insert(at, (offset, size))

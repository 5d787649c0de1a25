"""Running a program as one native call: a C routine walks an array of {function, argument block}.

Every buffer has a slot in a table of addresses.  Those of the arena, parameters and constants are
filled in once; inputs and outputs at each call.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minigraph.devices.cpu import openmp
from minigraph.devices.cpu.collective import Exchanges
from minigraph.devices.cpu.compiler import compiler_name
from minigraph.devices.cpu.kernel import (
    Linker,
    NativeCall,
    Operands,
    Place,
    Prepared,
    address_of,
    calls_of,
    preparations_of,
    texts_of,
)
from minigraph.devices.cpu.onednn_kernel import EXECUTE
from minigraph.devices.host import Invocation, together
from minigraph.devices.reference import NumpyKernel, run_step
from minigraph.errors import GraphError
from minigraph.graph import Array
from minigraph.jit.source import KernelSource
from minigraph.platform.signals import held
from minigraph.program import (
    KernelFailed,
    Look,
    Memory,
    MemorySpace,
    Program,
    Step,
    Timing,
    View,
    look_away,
)

WALKER = KernelSource(Path(__file__).with_suffix(".c").read_text())
SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
)
# Of steps, their count, slots, threads that it tells to flush denormals, and where to write which
# step has failed or paused: whether one did.
Walk = Callable[[int, int, int, int, int], int]


def load(linker: Linker) -> Walk | None:
    """Return the compiled routine; None where the compiler fails."""
    try:
        return SIGNATURE(linker.address(WALKER))
    except KernelFailed:
        return None


def texts(program: Program) -> list[KernelSource]:
    """Return the texts that a program runs, which one compilation makes functions of."""
    return [WALKER, *(text for step in program.steps for text in texts_of(step.kernel))]


def _flushed_by_walker(program: Program) -> bool:
    """Whether threads do not flush denormals by themselves: oneDNN's, or a compiler's own."""
    gnu = compiler_name().startswith("gcc")
    threaded = [step.kernel for step in program.steps if step.kernel.threads > 1]
    return any(not gnu or EXECUTE in texts_of(kernel) for kernel in threaded)


class NativeSegment(NamedTuple):
    """Steps that one native call runs: rows of {function, argument block}, and the step of each.

    Without `calls`, one step that Python runs.

    walk  runs all rows, in C alone; returns whether one has failed or paused
    """

    calls: Array | None
    steps: tuple[Step, ...]
    walk: Callable[[], int] | None = None

    @property
    def changes_parameters(self) -> bool:
        return self.changes_before(len(self.steps))

    def changes_before(self, row: int) -> bool:
        """Whether a row before this one changes a parameter."""
        steps = self.steps[:row]
        return any(v.buffer.space is MemorySpace.PARAMETER for step in steps for v in step.outputs)


class NativeProgram:
    """The steps of a program, bound to memory; call it with the memory of inputs and outputs.

    linker  of the program's texts
    """

    def __init__(
        self,
        program: Program,
        memory: Memory,
        walk: Walk,
        linker: Linker,
        threads: int,
        bulk: bool,
    ) -> None:
        self.program = program
        self.memory = memory
        self.walk = walk
        self.failures: dict[Step, str] = {}
        self.slot = {buffer: i for i, buffer in enumerate(program.buffers)}
        prepared = sum(len(preparations_of(step.kernel)) for step in program.steps)
        self.slots = (ctypes.c_uint64 * max(len(program.buffers) + prepared, 1))()
        self.slots_address = ctypes.addressof(self.slots)
        for buffer, array in memory.items():
            self.slots[self.slot[buffer]] = array.ctypes.data
        self.changing = [self.slot[buffer] for buffer in (*program.inputs, *program.returned)]
        self.threads = threads
        self.flushed = threads if _flushed_by_walker(program) else 1
        self.linker = linker
        self.prepared = Prepared(self.slots, len(program.buffers), self.linker)
        self.failed = ctypes.c_int64(-1)
        self.segments = self._segments(bulk)
        # From this segment on a call has to be finished.
        changing = [i for i, segment in enumerate(self.segments) if segment.changes_parameters]
        self.changes_from = changing[0] if changing else len(self.segments)

    @property
    def launches(self) -> int:
        """Native calls from Python."""
        return sum(segment.calls is not None for segment in self.segments)

    def _segments(self, bulk: bool) -> list[NativeSegment]:
        """Return native calls, as long as `bulk` allows, and the steps that Python runs."""
        segments: list[NativeSegment] = []
        rows: list[NativeCall] = []
        steps: list[Step] = []
        collectives = Exchanges()

        def close() -> None:
            if rows:
                calls = np.array(rows, np.int64)
                walk = functools.partial(self.walk, *self._rows(calls, 0, len(calls)))
                segments.append(NativeSegment(calls, tuple(steps), walk))
                rows.clear()
                steps.clear()

        for step in self.program.steps:
            try:
                calls = calls_of(step.kernel, self._operands(step), self.linker)
            except KernelFailed:
                close()
                segments.append(NativeSegment(None, (step,)))
                continue
            if not bulk:
                close()
            rows += calls
            steps += [step] * len(calls)
            for call, begun in collectives.after(step, self.linker):
                rows.append(call)
                steps.append(begun)
        close()
        return segments

    def _operands(self, step: Step) -> Operands:
        inputs, scratch = self._places(step.inputs), (self.slot[step.scratch], 0)
        places, calls = self.prepared.of(step.kernel, inputs)
        if calls:
            assert all(step.inputs[i].buffer.space is MemorySpace.CONSTANT for i in places)
            self._start_threads()
            rows = np.array(calls, np.int64)
            if self.walk(*self._rows(rows, 0, len(rows))):
                raise KernelFailed(f"{step.kernel.name} could not prepare a constant")
        return Operands(inputs, self._places(step.outputs), scratch, places)

    def _places(self, views: Sequence[View]) -> list[Place]:
        return [(self.slot[view.buffer], view.offset) for view in views]

    def __call__(self, call: Invocation) -> None:
        self._start_call(call)
        for begun in self.linker.begun:
            begun[:] = 0
        for segment in self.segments[: self.changes_from]:
            self._run(segment, call)
        rest = self.segments[self.changes_from :]
        if not rest:
            together(call.commit)
        elif len(rest) == 1 and rest[0].walk:
            self._run_and_commit(rest[0], call)
        else:
            with held():
                for segment in rest:
                    self._run(segment, call)
                together(call.commit)

    def _run_and_commit(self, segment: NativeSegment, call: Invocation) -> None:
        """Run a segment that changes parameters and, without an interrupt in between, commit.

        While a loop pauses that comes before all changes, an interrupt ends the call.
        """
        assert segment.walk and segment.calls is not None
        walk, begin = segment.walk, 0
        while True:
            self.failed.value = -1
            try:
                together([walk, *call.commit])
            finally:  # also where a signal came just after the walk
                stopped = self.failed.value
                at = begin - 2 - stopped
                paused = stopped < -1 and not segment.changes_before(at)
                if stopped != -1 and not paused:
                    with held():
                        self._resume(segment, call, begin)
                        together(call.commit)
            if not paused:
                return
            begin = at
            walk = functools.partial(self.walk, *self._rows(segment.calls, at, len(segment.steps)))

    def _run(self, segment: NativeSegment, call: Invocation) -> None:
        if not segment.walk:
            self._run_in_python(segment.steps[0], call)
        elif segment.walk():
            self._resume(segment, call)

    def _rows(self, calls: Array, begin: int, end: int) -> tuple[int, int, int, int, int]:
        """Return the arguments of a walk over some of the rows of a segment."""
        row = calls.ctypes.data + begin * calls.strides[0]
        failed = ctypes.addressof(self.failed)
        return row, end - begin, self.slots_address, self.flushed, failed

    def _row_fails(self, calls: Array, i: int) -> bool:
        """Run one row to its end; return whether it has failed."""
        while self.walk(*self._rows(calls, i, i + 1)):
            if self.failed.value >= 0:
                return True
        return False

    def _resume(self, segment: NativeSegment, call: Invocation, begin: int = 0) -> None:
        """Run the rest of a segment, of which the walk that began at a row has stopped."""
        assert segment.calls is not None
        end = len(segment.steps)
        while True:
            if self.failed.value < -1:  # paused
                begin += -2 - self.failed.value
            else:
                begin += self.failed.value
                step = segment.steps[begin]
                self._compute_in_numpy(step, call)
                while begin < end and segment.steps[begin] is step:
                    begin += 1
            if begin == end or not self.walk(*self._rows(segment.calls, begin, end)):
                return

    def profile(self, call: Invocation, look: Look = look_away) -> list[Timing]:
        self._start_call(call)
        memory = {**self.memory, **call.memory(self.program)}
        timings = []
        with held():
            for segment in self.segments:
                for step, rows in itertools.groupby(enumerate(segment.steps), lambda row: row[1]):
                    looked = look(step, memory)
                    for i, _ in rows:
                        start = time.perf_counter()
                        if segment.calls is None:
                            self._run_in_python(step, call)
                        elif self._row_fails(segment.calls, i):
                            self._compute_in_numpy(step, call)
                        timings.append(Timing(step, start, time.perf_counter() - start))
                    looked()
            together(call.commit)
        return timings

    def _start_call(self, call: Invocation) -> None:
        """Fill in where the arrays of this call are, and see that its threads are there."""
        self._start_threads()
        for slot, array in zip(self.changing, (*call.inputs, *call.outputs), strict=True):
            self.slots[slot] = address_of(array)

    def _start_threads(self) -> None:
        if openmp.here.threads < self.threads:
            openmp.start(self.threads)

    def _run_in_python(self, step: Step, call: Invocation) -> None:
        try:
            run_step(step, step.kernel, {**self.memory, **call.memory(self.program)})
        except KernelFailed as error:
            self._compute_in_numpy(step, call, str(error))

    def _compute_in_numpy(self, step: Step, call: Invocation, why: str = "") -> None:
        """Compute a step whose kernel failed in NumPy, which raises if an input is invalid."""
        memory = {**self.memory, **call.memory(self.program)}
        run_step(step, step.kernel.rescue or NumpyKernel(step.node), memory)
        if step.kernel.refuses and not why:
            raise GraphError(f"{step.node!r} {step.node.source}: {step.kernel.name} failed")
        # What the compiler failed for, it has said itself.
        if not step.kernel.rescue and (step.measured or not why):
            self.failures[step] = why or f"{step.kernel.name} reported an error"

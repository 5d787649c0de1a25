"""Run a program as one native call: a C routine walks an array of {function, argument block}.

Each buffer has a slot in a table of addresses.  The slots of the arena, parameters and constants
are filled once, those of inputs and outputs at each call.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minigraph.devices.cpu import openmp
from minigraph.devices.cpu.collective import PendingExchanges
from minigraph.devices.cpu.compiler import compiler_name
from minigraph.devices.cpu.kernel import (
    DATA_POINTER_OFFSET,
    ConvertedConstants,
    CpuKernel,
    Linker,
    NativeCall,
    Operands,
    Place,
    address_of,
)
from minigraph.devices.cpu.onednn_kernel import EXECUTE
from minigraph.devices.host import Observer, call_in_order, external_memory, no_observer
from minigraph.devices.reference import Interpreter, NumpyKernel, run_step
from minigraph.errors import GraphError
from minigraph.graph import Array
from minigraph.jit.source import KernelSource
from minigraph.platform.signals import signals_deferred
from minigraph.program import Done, KernelFailed, Memory, MemorySpace, Program, Step, Timing, View

WALKER = KernelSource(
    Path(__file__).with_suffix(".c").read_text().replace("OFFSET", str(DATA_POINTER_OFFSET))
)
Walk = Callable[..., bool]  # (the arrays of a call, or nothing) to whether a row stopped the walk
METH_FASTCALL = 0x80


class MethodDef(ctypes.Structure):
    """Python's PyMethodDef, which has to outlive the built-in functions created from it."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


new_builtin = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.POINTER(MethodDef), ctypes.py_object, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))
PYTHON_FUNCTIONS = [
    ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
    for name in ("PyEval_SaveThread", "PyEval_RestoreThread", "PyBool_FromLong")
]


def load(linker: Linker) -> MethodDef | None:
    """Return the compiled routine; None if the compiler fails."""
    try:
        return MethodDef(b"walk", linker.address(WALKER), METH_FASTCALL)
    except KernelFailed:
        return None


def texts(program: Program) -> list[KernelSource]:
    """Return the sources of a program, to compile together."""
    return [WALKER, *(text for step in program.steps for text in step.kernel.texts)]


def _flushed_by_walker(program: Program) -> bool:
    """Whether the walker has to set the flag that flushes denormals in the program's threads."""
    gnu = compiler_name().startswith("gcc")
    threaded = [step.kernel for step in program.steps if step.kernel.threads > 1]
    return any(not gnu or EXECUTE in kernel.texts for kernel in threaded)


class NativeSegment(NamedTuple):
    """Steps of one native call: rows of {function, argument block}, and the step of each row.

    A segment without `calls` is one step that Python runs.

    walk  runs all rows in C; returns whether a row failed or paused
    """

    calls: Array | None
    steps: tuple[Step, ...]
    walk: Walk | None = None

    def changes_before(self, row: int | None) -> bool:
        """Whether a row before `row` changes a parameter; any row if it is None."""
        return any(step.changes_parameters for step in self.steps[:row])


class NativeProgram(Interpreter):
    """The steps of a program, bound to memory; call it with the memory of inputs and outputs.

    linker  of the program's texts
    """

    def __init__(
        self,
        program: Program,
        memory: Memory,
        walker: MethodDef,
        linker: Linker,
        threads: int,
        bulk: bool,
    ) -> None:
        super().__init__(program, memory)
        self.walker = walker
        # The arrays of a call have the first slots.
        buffers = dict.fromkeys((*program.external, *program.buffers))
        self.slot = {buffer: i for i, buffer in enumerate(buffers)}
        kernels = (step.kernel for step in program.steps)
        prepared = sum(len(k.preparations) for k in kernels if isinstance(k, CpuKernel))
        self.slots = (ctypes.c_uint64 * max(len(buffers) + prepared, 1))()
        for buffer, array in memory.items():
            self.slots[self.slot[buffer]] = address_of(array)
        self.threads = threads
        self.flushing_threads = threads if _flushed_by_walker(program) else 1
        self.linker = linker
        self.prepared = ConvertedConstants(self.slots, len(buffers), self.linker)
        self.failed = ctypes.c_int64(-1)
        self.segments = self._segments(bulk)
        self.launches = sum(segment.calls is not None for segment in self.segments)
        # After the first segment that changes parameters has begun, a call must run to its end.
        changing = [i for i, segment in enumerate(self.segments) if segment.changes_before(None)]
        end = changing[0] if changing else len(self.segments)
        self.reading_segments, self.changing_segments = self.segments[:end], self.segments[end:]

    def _segments(self, bulk: bool) -> list[NativeSegment]:
        """Return the segments: with `bulk`, as many steps as possible in each native call."""
        segments: list[NativeSegment] = []
        rows: list[NativeCall] = []
        steps: list[Step] = []
        collectives = PendingExchanges()

        def close() -> None:
            if rows:
                calls = np.array(rows, np.int64)
                segments.append(NativeSegment(calls, tuple(steps), self._walk(calls)))
                rows.clear()
                steps.clear()

        for step in self.program.steps:
            calls = self._calls(step)
            if calls is None:
                close()
                segments.append(NativeSegment(None, (step,)))
                continue
            if not bulk:
                close()
            rows += calls
            steps += [step] * len(calls)
            for call, starter in collectives.progress_calls(step, self.linker):
                rows.append(call)
                steps.append(starter)
        close()
        return segments

    def _calls(self, step: Step) -> list[NativeCall] | None:
        """Convert the constants of a step and return its calls; None if Python has to run it."""
        kernel, inputs, scratch = step.kernel, self._places(step.inputs), self.slot[step.scratch]
        if not isinstance(kernel, CpuKernel):
            return None
        with suppress(KernelFailed):  # a text could not be compiled
            places, calls = self.prepared.convert(kernel, inputs)
            if calls:
                assert all(step.inputs[i].buffer.space is MemorySpace.CONSTANT for i in places)
                self._start_call()
                rows = np.array(calls, np.int64)
                if self._walk(rows)():
                    return None
            operands = Operands(inputs, self._places(step.outputs), (scratch, 0), places)
            return kernel.calls(operands, self.linker)
        return None

    def _places(self, views: Sequence[View]) -> list[Place]:
        return [(self.slot[view.buffer], view.offset) for view in views]

    def __call__(self, arrays: Sequence[Array], commit: Sequence[Done] = ()) -> None:
        self._start_call()
        for segment in self.reading_segments:
            self._run(segment, arrays)
        if not self.changing_segments:
            call_in_order(commit)
        elif len(self.changing_segments) == 1 and self.changing_segments[0].walk:
            self._run_and_commit(self.changing_segments[0], arrays, commit)
        else:
            with signals_deferred():
                for segment in self.changing_segments:
                    self._run(segment, arrays)
                call_in_order(commit)

    def _run_and_commit(
        self, segment: NativeSegment, arrays: Sequence[Array], commit: Sequence[Done]
    ) -> None:
        """Run a segment that changes parameters and commit, without an interrupt in between.

        An interrupt ends the call only while a loop pauses before the first change.
        """
        assert segment.walk and segment.calls is not None
        walk: Walk = functools.partial(segment.walk, *arrays)
        begin = 0
        while True:
            self.failed.value = -1
            try:
                call_in_order([walk, *commit])
            finally:  # even if a signal handler raised after the walk
                stopped = self.failed.value
                row = begin - 2 - stopped
                paused = stopped < -1 and not segment.changes_before(row)
                if stopped != -1 and not paused:
                    with signals_deferred():
                        self._continue_walk(segment, arrays, begin)
                        call_in_order(commit)
            if not paused:
                return
            begin = row
            walk = self._walk(segment.calls[row:])

    def _run(self, segment: NativeSegment, arrays: Sequence[Array]) -> None:
        if not segment.walk:
            self._run_step(segment.steps[0], self._all_memory(arrays))
        elif segment.walk(*arrays):
            self._continue_walk(segment, arrays)

    def _walk(self, rows: Array) -> Walk:
        """Return a function that runs rows in C; the rows and the program have to outlive it."""
        slots, failed = map(ctypes.addressof, (self.slots, self.failed))
        words = [rows.ctypes.data, len(rows), slots, failed, self.flushing_threads]
        words += PYTHON_FUNCTIONS
        walk: Walk = new_builtin(self.walker, np.array(words, np.int64), None)
        return walk

    def _row_fails(self, row: Array, arrays: Sequence[Array]) -> bool:
        """Run one row to its end; return whether it failed."""
        walk = self._walk(row)
        while walk(*arrays):
            if self.failed.value >= 0:
                return True
        return False

    def _continue_walk(
        self, segment: NativeSegment, arrays: Sequence[Array], begin: int = 0
    ) -> None:
        """Run the rest of a segment after the walk from row `begin` stopped."""
        assert segment.calls is not None
        end = len(segment.steps)
        while True:
            if self.failed.value < -1:  # paused
                begin += -2 - self.failed.value
            else:
                begin += self.failed.value
                step = segment.steps[begin]
                self._compute_in_numpy(step, arrays)
                while begin < end and segment.steps[begin] is step:
                    begin += 1
            if begin == end or not self._walk(segment.calls[begin:])():
                return

    def profile(
        self, arrays: Sequence[Array], commit: Sequence[Done], observer: Observer = no_observer
    ) -> list[Timing]:
        self._start_call()
        memory = self._all_memory(arrays)
        timings = []
        with signals_deferred():
            for segment in self.segments:
                for step, rows in itertools.groupby(enumerate(segment.steps), lambda row: row[1]):
                    check_outputs = observer(step, memory)
                    for i, _ in rows:
                        start = time.perf_counter()
                        if segment.calls is None:
                            self._run_step(step, memory)
                        elif self._row_fails(segment.calls[i : i + 1], arrays):
                            self._compute_in_numpy(step, arrays)
                        timings.append(Timing(step, start, time.perf_counter() - start))
                    check_outputs()
            call_in_order(commit)
        return timings

    def _start_call(self) -> None:
        if openmp.team.threads < self.threads:
            openmp.start(self.threads)
        for progress in self.linker.loop_progress:
            progress[:] = 0

    def _compute_in_numpy(self, step: Step, arrays: Sequence[Array]) -> None:
        """Compute a step whose kernel failed in NumPy, which raises if an input is invalid."""
        run_step(step, step.kernel.fallback or NumpyKernel(step.node), self._all_memory(arrays))
        if step.kernel.validates_input:
            raise GraphError(f"{step.node!r} {step.node.source}: {step.kernel.name} failed")
        if not step.kernel.fallback:
            self.failures[step] = f"{step.kernel.name} reported an error"

    def _all_memory(self, arrays: Sequence[Array]) -> Memory:
        return {**self.memory, **external_memory(self.program, arrays)}

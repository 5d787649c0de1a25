"""Running a program as one native call: a C routine walks an array of {function, argument block}.

Every buffer has a slot in a table of addresses.  Those of the arena, parameters and constants are
filled in once; inputs and outputs at each call.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from minigraph.devices.cpu import compiler
from minigraph.devices.cpu.kernel import NativeKernel, SequenceKernel, TogetherKernel
from minigraph.devices.cpu.onednn import OneDnnKernel
from minigraph.devices.reference import NumpyKernel, changing_memory, run_step
from minigraph.errors import GraphError
from minigraph.graph import Array
from minigraph.jit.source import KernelSource
from minigraph.program import Kernel, KernelFailed, Memory, Program, Step, Timing, View

# Denormals are flushed to zero while a program runs: they would make a trained network tens of
# times slower.  The caller's settings come back at the end; OpenMP's other threads keep ours.
RUN = """
#if defined(__x86_64__)
static __thread int64_t mg_flushing;
#endif
int64_t NAME(const int64_t *steps, int64_t count, char **slots, int64_t threads) {
  const int max_threads = omp_get_max_threads();
#if defined(__x86_64__)
  const unsigned saved = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(saved | 0x8040);
  if (mg_flushing < threads) {
    #pragma omp parallel num_threads(threads)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
    mg_flushing = threads;
  }
#endif
  int64_t failed = -1;
  for (int64_t i = 0; i < count && failed < 0; i++) {
    int (*run)(const int64_t *, char **) = (int (*)(const int64_t *, char **))steps[2 * i];
    if (run((const int64_t *)steps[2 * i + 1], slots)) failed = i;
  }
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(saved);
#endif
  omp_set_num_threads(max_threads);
  return failed;
}
"""

# Set where each argument's memory is, then execute.
ONEDNN = """
typedef int (*mg_set_handle)(void *, void *);
typedef int (*mg_execute)(void *, void *, int, void *);
int NAME(const int64_t *a, char **slots) {
  const mg_set_handle set_handle = (mg_set_handle)a[0];
  omp_set_num_threads(a[6]);
  for (int64_t i = 0; i < a[4]; i++)
    set_handle((void *)a[7 + 3 * i], slots[a[8 + 3 * i]] + a[9 + 3 * i]);
  return ((mg_execute)a[1])((void *)a[2], (void *)a[3], a[4], (void *)a[5]);
}
"""

# Calls that do not depend on each other: threads, count, then function and argument block of each.
TOGETHER = """
int NAME(const int64_t *a, char **slots) {
  #pragma omp parallel for num_threads(a[0]) if (a[0] > 1) schedule(dynamic)
  for (int64_t i = 0; i < a[1]; i++)
    ((int (*)(const int64_t *, char **))a[2 + 2 * i])((const int64_t *)a[3 + 2 * i], slots);
  return 0;
}
"""


ROUTINES = [KernelSource(RUN), KernelSource(ONEDNN), KernelSource(TOGETHER)]


class Runtime:
    """The compiled routines."""

    def __init__(self, run: int, onednn: int, together: int) -> None:
        self.onednn = onednn
        self.together = together
        self.run = ctypes.CFUNCTYPE(
            ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
        )(run)


@functools.cache
def load(on_disk: bool) -> Runtime | None:
    """Compile the routines, once a process; None where the compiler fails."""
    addresses = compiler.load(ROUTINES, on_disk)
    return Runtime(*addresses) if all(addresses) else None


class NativeSegment(NamedTuple):
    """Steps that one native call runs: rows of {function, argument block}, and the step of each.

    Without `calls`, one step that Python runs.
    """

    calls: Array | None
    steps: tuple[Step, ...]
    address: int = 0  # of the calls


def sources_of(kernel: Kernel) -> list[KernelSource]:
    """Return the texts that have to be compiled for a kernel."""
    if isinstance(kernel, SequenceKernel):
        return [*sources_of(kernel.first), *sources_of(kernel.then)]
    return [call.source for call in kernel.calls] if isinstance(kernel, NativeKernel) else []


def address_of(array: Array) -> int:
    """Return where an array's elements are; five times as fast as `array.ctypes.data`."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # read-only, or empty
        return int(array.ctypes.data)


class NativeProgram:
    """The steps of a program, bound to memory; call it with the memory of inputs and outputs."""

    def __init__(
        self,
        program: Program,
        memory: Memory,
        runtime: Runtime,
        threads: int,
        bulk: bool,
        on_disk: bool,
    ) -> None:
        self.program = program
        self.memory = memory
        self.runtime = runtime
        self.failures: dict[Step, str] = {}
        self.slot = {buffer: i for i, buffer in enumerate(program.buffers)}
        self.slots = (ctypes.c_uint64 * max(len(program.buffers), 1))()
        self.slots_address = ctypes.addressof(self.slots)
        for buffer, array in memory.items():
            self.slots[self.slot[buffer]] = array.ctypes.data
        self.changing = [self.slot[buffer] for buffer in (*program.inputs, *program.returned)]
        self.threads = threads
        self.blocks: list[Array] = []  # argument blocks, which the table of calls points to
        self.segments = self._segments(bulk, on_disk)

    @property
    def launches(self) -> int:
        """Native calls from Python."""
        return sum(segment.calls is not None for segment in self.segments)

    def _segments(self, bulk: bool, on_disk: bool) -> list[NativeSegment]:
        """Return native calls, as long as `bulk` allows, and the steps that Python runs."""
        sources = [source for step in self.program.steps for source in sources_of(step.kernel)]
        addresses = compiler.load(sources, on_disk)
        address = dict(zip((s.name for s in sources), addresses, strict=True))
        segments: list[NativeSegment] = []
        rows: list[tuple[int, int]] = []
        steps: list[Step] = []

        def close() -> None:
            if rows:
                calls = np.array(rows, np.int64)
                segments.append(NativeSegment(calls, tuple(steps), calls.ctypes.data))
                rows.clear()
                steps.clear()

        for step in self.program.steps:
            entries = self._entries(step, address)
            if entries is None or not bulk:
                close()
            if entries is None:
                segments.append(NativeSegment(None, (step,)))
            else:
                rows += entries
                steps += [step] * len(entries)
        close()
        return segments

    def _entries(self, step: Step, address: dict[str, int]) -> list[tuple[int, int]] | None:
        """Return the calls of a step: function and argument block; None if Python runs it."""
        if isinstance(step.kernel, SequenceKernel):
            whole = step.kernel
            first = self._entries(replace(step, kernel=whole.first), address)
            then = self._entries(replace(step, kernel=whole.then, inputs=step.outputs), address)
            return first + then if first and then else None
        inputs, outputs = self._places(step.inputs), self._places(step.outputs)
        scratch = (self.slot[step.scratch], 0)
        if isinstance(step.kernel, NativeKernel):
            functions = [address[call.source.name] for call in step.kernel.calls]
            if not all(functions):
                return None
            entries = [
                (function, self._block(call.block(inputs, outputs, scratch)))
                for function, call in zip(functions, step.kernel.calls, strict=True)
            ]
            if isinstance(step.kernel, TogetherKernel):
                words = [step.kernel.threads, len(entries), *(w for e in entries for w in e)]
                return [(self.runtime.together, self._block(words))]
            return entries
        if isinstance(step.kernel, OneDnnKernel):
            threads = step.kernel.threads
            return [
                (self.runtime.onednn, self._block(call.block(inputs, outputs, scratch, threads)))
                for call in step.kernel.calls
            ]
        return None

    def _places(self, views: Sequence[View]) -> list[tuple[int, int]]:
        return [(self.slot[view.buffer], view.offset) for view in views]

    def _block(self, words: list[int]) -> int:
        self.blocks.append(np.array(words, np.int64))
        return int(self.blocks[-1].ctypes.data)

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._place(inputs, outputs)
        for segment in self.segments:
            if segment.calls is None:
                self._interpret(segment.steps[0], inputs, outputs)
            else:
                self._run(segment, inputs, outputs)

    def _run(
        self, segment: NativeSegment, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        assert segment.calls is not None
        begin, count = 0, len(segment.steps)
        while begin < count:
            row = segment.address + begin * segment.calls.strides[0]
            failed = self.runtime.run(row, count - begin, self.slots_address, self.threads)
            if failed < 0:
                return
            begin += failed
            step = segment.steps[begin]
            self._stand_in(step, inputs, outputs)
            while begin < count and segment.steps[begin] is step:
                begin += 1

    def profile(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Timing]:
        self._place(inputs, outputs)
        timings = []
        for segment in self.segments:
            for i, step in enumerate(segment.steps):
                start = time.perf_counter()
                if segment.calls is None:
                    self._interpret(step, inputs, outputs)
                else:
                    row = segment.address + i * segment.calls.strides[0]
                    if self.runtime.run(row, 1, self.slots_address, self.threads) >= 0:
                        self._stand_in(step, inputs, outputs)
                timings.append(Timing(step, start, time.perf_counter() - start))
        return timings

    def _place(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Fill in where the arrays of this call are."""
        for slot, array in zip(self.changing, (*inputs, *outputs), strict=True):
            self.slots[slot] = address_of(array)

    def _interpret(self, step: Step, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        changing = changing_memory(self.program, inputs, outputs)
        try:
            run_step(step, step.kernel, {**self.memory, **changing})
        except KernelFailed as error:
            self._stand_in(step, inputs, outputs, str(error))

    def _stand_in(
        self, step: Step, inputs: Sequence[Array], outputs: Sequence[Array], why: str = ""
    ) -> None:
        """Let NumPy do a step whose kernel failed, or raise the error for what it refused."""
        changing = changing_memory(self.program, inputs, outputs)
        run_step(step, NumpyKernel(step.node), {**self.memory, **changing})
        if step.kernel.refuses:
            raise GraphError(f"{step.node!r} {step.node.source}: {step.kernel.name} failed")
        self.failures[step] = why or f"{step.kernel.name} reported an error"

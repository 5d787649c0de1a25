"""Running a program on a CUDA device: the first call step by step, later ones as one CUDA graph.

Everything of a function has its place in device memory before the first call.  The arrays of a call
come and go, so inputs are copied to fixed buffers, and outputs from them:

    copies   stream: what lies on the host, from pinned memory to a landing place on the device
    compute  stream: from there to the inputs, the graph, from the outputs to new arrays

The landing place lets a batch travel while the step before it is still computing.  The caller's own
stream waits for the results, so nobody has to wait on the host.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from minigraph.backends.cuda.driver import DeviceMemory, Driver
from minigraph.backends.cuda.kernel import CudaKernel
from minigraph.backends.cuda.parameter import copy_of
from minigraph.backends.cuda.step import Call, calls_of, interpret
from minigraph.dtypes import Array
from minigraph.errors import DeviceError, GraphError, located, warn_once
from minigraph.graph import Constant, Parameter
from minigraph.program import Buffer, Home, Program, Step, Timing, View

ALIGNMENT = 256  # bytes: what the device's own allocations begin at a multiple of


class Segment(NamedTuple):
    """Steps that are enqueued without waiting, and their calls; None for one that NumPy does."""

    steps: list[Step]
    calls: list[Call] | None


class CudaProgram:
    """The steps of a program with their memory on a device; an `Executor`.

    functions  the loaded kernels, by the names of their sources
    bulk       launch a whole step as one CUDA graph
    """

    def __init__(
        self, program: Program, driver: Driver, functions: Mapping[str, int], bulk: bool = True
    ) -> None:
        self.program = program
        self.driver = driver
        self.bulk = bulk
        self.failures: dict[Step, str] = {}
        self._parameters = [*dict.fromkeys((*program.parameters, *(p for p, _ in program.updates)))]
        self._ranges = {
            step: step.kernel.range
            for step in program.steps
            if isinstance(step.kernel, CudaKernel) and step.kernel.range is not None
        }
        # Integers that are inputs are looked at before anything runs; others set flags.
        self._given = [s for s in self._ranges if self._checked(s).buffer.home is Home.INPUT]
        self._flagged = [step for step in self._ranges if step not in self._given]
        with driver.current():
            self._arena, self._places = _allocate_arena(program, driver)
            self._place_changing()
            self._place_constants()
            for buffer in program.buffers:
                if buffer.home is Home.PARAMETER:
                    assert isinstance(buffer.node, Parameter)
                    self._places[buffer] = copy_of(buffer.node, driver).address
            self._calls = {
                step: calls_of(step, self._places, self._flag.get(step, 0), functions, driver)
                for step in program.steps
            }
            self._events = [driver.event() for _ in range(4)]
        self._begun, self._arrived, self._landed, self._done = self._events
        self._segments = self._split()
        self._warm = False
        self._graphs: list[int] = []  # of the segments that have calls, once captured
        weakref.finalize(self, driver.forget, self._graphs, self._events).atexit = False

    @property
    def launches(self) -> int:
        """Native calls from Python, of kernels or graphs, per call."""
        calls = [len(segment.calls) for segment in self._segments if segment.calls is not None]
        return len(calls) if self.bulk else sum(calls)

    @property
    def syncs(self) -> int:
        """How often a call waits for the device."""
        return int(bool(self._flagged)) + sum(s.calls is None for s in self._segments)

    # ------------------------------------------------------------ binding

    def _place_changing(self) -> None:
        """Give inputs, outputs, flags and what arrives from the host their places."""
        inputs, returned = self.program.inputs, self.program.returned
        sizes = [*(_aligned(b.nbytes) for b in (*inputs, *returned)), 4 * len(self._ranges)]
        offsets = [*itertools.accumulate(sizes, initial=0)]
        landing, self._arriving = _aligned(offsets[-1]), offsets[len(inputs)]
        self._memory = self.driver.allocate(landing + self._arriving)
        base = self._memory.address
        self._places |= {b: base + o for b, o in zip((*inputs, *returned), offsets, strict=False)}
        self._flag = {step: base + offsets[-2] + 4 * i for i, step in enumerate(self._ranges)}
        # Inputs lie in pinned memory and in the landing place as they lie in theirs.
        self._inputs, self._landing = base, base + landing
        self._offsets = offsets[: len(inputs)]
        self._pinned = self.driver.pinned(self._arriving)

    def _place_constants(self) -> None:
        constants = [b for b in self.program.buffers if b.home is Home.CONSTANT]
        sizes = (_aligned(b.nbytes) for b in constants)
        offsets = [*itertools.accumulate(sizes, initial=0)]
        self._constants = self.driver.allocate(offsets[-1])
        for buffer, offset in zip(constants, offsets, strict=False):
            assert buffer.node is not None and isinstance(buffer.node.op, Constant)
            self._places[buffer] = place = self._constants.address + offset
            value = np.ascontiguousarray(buffer.node.op.value)
            self.driver.upload(place, value, self.driver.compute)

    def _split(self) -> list[Segment]:
        """Return the steps in segments: one ends where the host has to do or to see something."""
        segments: list[Segment] = []
        ended = True
        for step in self.program.steps:
            calls = self._calls[step]
            open_calls = None if ended else segments[-1].calls
            if calls is None or open_calls is None:
                segments.append(Segment([step], None if calls is None else [*calls]))
            else:
                segments[-1].steps.append(step)
                open_calls.extend(calls)
            ended = step in self._flagged[-1:]  # no step so far has changed a parameter
        return segments

    def _address(self, view: View) -> int:
        return self._places[view.buffer] + view.offset

    # ------------------------------------------------------------ a call

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        with self.driver.current():
            caller = self.driver.current_stream()
            self._take(inputs, caller)
            if self.bulk and self._warm and not self._graphs:
                self._capture()
            graphs = iter(self._graphs)
            for segment in self._segments:
                if segment.calls is None:
                    interpret(segment.steps[0], self._places, self.driver)
                elif self._graphs:
                    self.driver.launch_graph(next(graphs), self.driver.compute)
                else:
                    for call in segment.calls:
                        call(self.driver.compute)
                self._see_flags(segment.steps)
            self._warm = True
            return self._finish(caller)

    def profile(self, inputs: Sequence[Array]) -> tuple[list[Array], list[Timing]]:
        driver, compute = self.driver, self.driver.compute
        with driver.current():
            caller = driver.current_stream()
            self._take(inputs, caller)
            driver.synchronize(compute)
            start = time.perf_counter()
            events = [driver.event(timing=True) for _ in range(2 * len(self.program.steps) + 1)]
            begin, *rest = events
            driver.record(begin, compute)
            pairs = [*zip(rest[::2], rest[1::2], strict=True)]
            for step, (before, after) in zip(self.program.steps, pairs, strict=True):
                driver.record(before, compute)
                calls = self._calls[step]
                if calls is None:
                    interpret(step, self._places, driver)
                for call in calls or ():
                    call(compute)
                driver.record(after, compute)
                self._see_flags([step])
            outputs = self._finish(caller)
            driver.synchronize(compute)
            timings = [
                Timing(step, start + driver.seconds(begin, before), driver.seconds(before, after))
                for step, (before, after) in zip(self.program.steps, pairs, strict=True)
            ]
            driver.forget([], events)
        return outputs, timings

    def _take(self, inputs: Sequence[Array], caller: int) -> None:
        """Bring the inputs to their places, after what the caller's stream has to do for them."""
        driver, compute, copies = self.driver, self.driver.compute, self.driver.copies
        driver.record(self._begun, caller)
        driver.wait(compute, self._begun)
        self._check_given(inputs, caller)
        for parameter in self._parameters:
            copy_of(parameter, driver)
        for step in self._flagged:
            driver.clear(self._flag[step], 4, compute)
        buffers = self.program.inputs
        pieces = []
        for buffer, offset, array in zip(buffers, self._offsets, inputs, strict=True):
            if isinstance(array, np.ndarray):
                pieces.append((offset, array))
            else:
                driver.copy(self._inputs + offset, array.data.ptr, buffer.nbytes, compute)
        if not pieces:
            return
        driver.finish(self._arrived)  # the batch before has left the pinned memory
        for offset, array in pieces:
            to = self._pinned[offset : offset + array.nbytes]
            np.copyto(to.view(array.dtype).reshape(array.shape), array)
        whole = len(pieces) == len(buffers)
        parts = [(o, x.nbytes) for o, x in pieces] if not whole else [(0, self._arriving)]
        driver.wait(copies, self._landed)
        for offset, nbytes in parts:
            driver.upload(self._landing + offset, self._pinned[offset : offset + nbytes], copies)
        driver.record(self._arrived, copies)
        driver.wait(compute, self._arrived)
        for offset, nbytes in parts:
            driver.copy(self._inputs + offset, self._landing + offset, nbytes, compute)
        driver.record(self._landed, compute)

    def _finish(self, caller: int) -> list[Array]:
        """Apply the updates that are not made in place, and return what the caller gets."""
        driver, compute = self.driver, self.driver.compute
        outputs = [driver.array(view.spec) for view in self.program.outputs]
        for view, array in zip(self.program.outputs, outputs, strict=True):
            self._copy(array.data.ptr, view)
        for parameter, view in self.program.updates:
            self._copy(copy_of(parameter, driver).address, view)
        for parameter in self.program.changed:
            parameter.state.written(driver.device)
        driver.record(self._done, compute)
        driver.wait(caller, self._done)
        return outputs

    def _copy(self, to: int, view: View) -> None:
        """Copy what a view shows to contiguous memory."""
        source, compute = self._address(view), self.driver.compute
        if view.contiguous:
            self.driver.copy(to, source, view.spec.nbytes, compute)
        else:
            self.driver.gather(to, source, view.spec, view.strides, compute)

    # ------------------------------------------------------------ integers out of range

    def _checked(self, step: Step) -> View:
        """Return the integers of a step that have to be in range."""
        return step.inputs[self._ranges[step].operand]

    def _check_given(self, inputs: Sequence[Array], caller: int) -> None:
        """Raise GraphError, before anything runs, if an input holds an integer out of range."""
        for step in self._given:
            buffer = self._checked(step).buffer
            array = inputs[self.program.inputs.index(buffer)]
            if not isinstance(array, np.ndarray):
                array = self._fetched(buffer, array.data.ptr, caller)
            self._check(step, array)

    def _check(self, step: Step, memory: Array) -> None:
        """Raise GraphError if one of the integers in `memory` is out of range."""
        range = self._ranges[step]
        values = self._checked(step).array(memory)
        wrong = values[(values < range.low) | (values >= range.high)]
        if wrong.size:
            raise _refusal(step, f"{wrong[0]} is not in {range.low} ... {range.high - 1}")

    def _see_flags(self, steps: Sequence[Step]) -> None:
        """Raise GraphError if a flag is set, once the last step that has one is among `steps`."""
        if not self._flagged or self._flagged[-1] not in steps[-1:]:
            return
        compute = self.driver.compute
        flags = np.zeros(len(self._flagged), np.int32)
        for i, step in enumerate(self._flagged):
            self.driver.download(flags[i : i + 1], self._flag[step], compute)
        self.driver.synchronize(compute)
        for step in itertools.compress(self._flagged, flags):
            buffer = self._checked(step).buffer
            self._check(step, self._fetched(buffer, self._places[buffer], compute))
            raise _refusal(step, "an integer is out of range")  # overwritten since

    def _fetched(self, buffer: Buffer, address: int, stream: int) -> Array:
        """Return the bytes of a buffer that lies at `address`."""
        found = np.empty(buffer.nbytes, np.uint8)
        self.driver.download(found, address, stream)
        self.driver.synchronize(stream)
        return found

    # ------------------------------------------------------------ graphs

    def _capture(self) -> None:
        """Make a graph of each segment; where that fails, launch step by step from now on."""
        driver = self.driver
        stream = driver.stream()  # of its own: another thread may use `compute` at the same time
        # A destructor that frees memory of the device would spoil what is being captured.
        gc.collect()
        collecting = gc.isenabled()
        gc.disable()
        try:
            for segment in self._segments:
                if segment.calls is not None:
                    self._graphs.append(self._captured(segment.calls, stream))
        except (DeviceError, RuntimeError) as error:
            driver.forget(self._graphs, [])
            self._graphs.clear()
            self.bulk = False
            warn_once(f"the step is no CUDA graph but launched kernel by kernel: {error}")
        finally:
            if collecting:
                gc.enable()
            driver.close_stream(stream)

    def _captured(self, calls: Sequence[Call], stream: int) -> int:
        driver = self.driver
        driver.begin_capture(stream)
        try:
            for call in calls:
                call(stream)
        except Exception:
            with contextlib.suppress(DeviceError):  # of the capture that is now invalid
                driver.close_graph(driver.end_capture(stream))
            raise
        graph = driver.end_capture(stream)
        try:
            return driver.instantiate(graph)
        finally:
            driver.close_graph(graph)


def _allocate_arena(program: Program, driver: Driver) -> tuple[DeviceMemory, dict[Buffer, int]]:
    """Return the arena, and where in it each buffer lies.

    Raises DeviceError that says what the memory would have been for.
    """
    try:
        memory = driver.allocate(program.arena_bytes)
    except DeviceError as error:
        others = sum({b.node: b.nbytes for b in program.buffers if b.node is not None}.values())
        raise DeviceError(
            f"{error}; the step has {program.arena_bytes >> 20} MiB of intermediate results "
            f"besides {others >> 20} MiB of parameters, inputs and constants"
        ) from None
    arena = [b for b in program.buffers if b.home is Home.ARENA]
    return memory, {b: memory.address + b.offset for b in arena}


def _refusal(step: Step, text: str) -> GraphError:
    return located(GraphError(text), step.node.op.name, step.node.inputs, step.node.source)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT

"""Run a program on a CUDA device: the first call step by step, later calls as one CUDA graph.

Parameters, constants and the arena are allocated before the first call.  A graph needs fixed
addresses, so inputs are copied to fixed buffers (`staging`), and outputs from fixed buffers to new
arrays.  If large arrays make these copies cost more than a graph saves (`calls`), kernels read and
write the call's arrays directly, and every call launches them one by one.

All work is on the stream `compute`.  It waits for the caller's stream before a call, and the
caller's stream waits for it after the call.  The host waits only for the checks of integers on the
device: no parameter changes before the host knows that all integers are in range.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from minigraph.devices.cuda.calls import (
    AddressMap,
    BoundCalls,
    Call,
    bind,
    capture,
    launches_of,
    rebound_buffers,
)
from minigraph.devices.cuda.collective import NcclKernel, measured_exchanges
from minigraph.devices.cuda.driver import LOAD_ALIGNMENT, Driver, aligned
from minigraph.devices.cuda.kernel import CudaKernel
from minigraph.devices.cuda.staging import Staging, copy_of
from minigraph.errors import DeviceError, GraphError, located, warn_once
from minigraph.graph import Array, Constant, Parameter, outdated_on
from minigraph.platform.signals import signals_deferred
from minigraph.program import (
    Buffer,
    Done,
    Executor,
    MemorySpace,
    Program,
    Step,
    Timing,
    View,
    nothing,
)
from minigraph.program.memory import demand

MAX_CHECKED_BY_HOST = 1 << 16  # integers of an input, which the host checks in about 0.1 ms

CallsOfStep = Callable[[Step], Sequence[Call]]


class GraphSegment(NamedTuple):
    """Steps that are enqueued without waiting, or a single step that NumPy runs."""

    steps: list[Step]
    enqueued: bool


class CudaProgram(Executor):
    """The steps of a program with their memory on a device.

    functions  loaded kernels, by the names of their sources
    bulk       whether to launch a call as one CUDA graph, unless kernels use its arrays directly
    arenas     arenas of programs that never run at the same time
    """

    def __init__(
        self,
        program: Program,
        driver: Driver,
        functions: Mapping[str, int],
        bulk: bool = True,
        arenas: Sequence[Array] = (),
    ) -> None:
        super().__init__()
        self.program = program
        self.driver = driver
        parameters = dict.fromkeys((*program.parameters, *(p for p, _ in program.updates)))
        self._states = [p.state for p in parameters]
        self._changed = [p.state for p in program.changed]
        self._ranges = {
            step: step.kernel.range
            for step in program.steps
            if isinstance(step.kernel, CudaKernel) and step.kernel.range is not None
        }
        self._checks = [step for step in program.checks if step in self._ranges]
        self._flagged = [s for s in self._checks if not self._is_input(s)]
        self._moving = rebound_buffers(program)
        self._direct_outputs = {b for b in self._moving if b.space is MemorySpace.OUTPUT}
        with driver.current():
            large = [arena for arena in arenas if arena.nbytes >= program.arena_bytes]
            try:
                self.arena: Array = large[0] if large else driver.allocate(program.arena_bytes)
            except DeviceError as error:
                raise DeviceError(f"{error}; {demand(program)}") from None
            arena = (b for b in program.buffers if b.space is MemorySpace.ARENA)
            self._addresses = {b: self.arena.data.ptr + b.offset for b in arena}
            self._staging = Staging([b for b in program.inputs if b not in self._moving], driver)
            self._addresses |= self._staging.addresses
            outputs = [b for b in program.returned if b not in self._direct_outputs]
            flags = 4 * len(self._ranges)
            self._memory = self._place_buffers(outputs, flags)
            self._flags = self._memory.data.ptr + self._memory.nbytes - flags
            flag = {step: self._flags + 4 * i for i, step in enumerate(self._ranges)}
            constants = [b for b in program.buffers if b.space is MemorySpace.CONSTANT]
            self._constants = self._place_buffers(constants)
            for buffer in constants:
                assert buffer.node is not None and isinstance(buffer.node.op, Constant)
                value = np.ascontiguousarray(buffer.node.op.value)
                driver.upload(self._addresses[buffer], value, driver.compute)
            for buffer in program.buffers:
                if buffer.space is MemorySpace.PARAMETER:
                    assert isinstance(buffer.node, Parameter)
                    self._addresses[buffer] = copy_of(buffer.node.state, driver).address
            self._bound = bind(program, self._addresses, self._moving, flag, functions, driver)
            self._start_event, self._end_event = events = [driver.event() for _ in range(2)]
        self._collectives = [s.kernel for s in program.steps if isinstance(s.kernel, NcclKernel)]
        self._segments = self._split()
        has_graphs = any(segment.enqueued for segment in self._segments)
        self.bulk = bulk and not self._moving and has_graphs
        self._warm = False
        self._graphs: list[int] = []  # of the segments that are enqueued, once captured
        weakref.finalize(self, driver.destroy, self._graphs, events).atexit = False

    @property
    def launches(self) -> int:
        """Native calls from Python, of kernels or graphs, per call."""
        enqueued = [segment.steps for segment in self._segments if segment.enqueued]
        if self.bulk:
            return len(enqueued)
        steps = itertools.chain.from_iterable(enqueued)
        return sum(launches_of(step.kernel) or 0 for step in steps)

    @property
    def syncs(self) -> int:
        """Number of waits for the device in a call."""
        by_numpy = sum(not segment.enqueued for segment in self._segments)
        return int(bool(self._flagged)) + by_numpy

    # ------------------------------------------------------------ binding

    def _place_buffers(self, buffers: Sequence[Buffer], extra_bytes: int = 0) -> Array:
        """Allocate memory, assign each buffer its address, and append `more` bytes."""
        *offsets, end = itertools.accumulate((aligned(b.nbytes) for b in buffers), initial=0)
        memory = self.driver.allocate(end + extra_bytes)
        self._addresses |= {b: memory.data.ptr + o for b, o in zip(buffers, offsets, strict=True)}
        return memory

    def _split(self) -> list[GraphSegment]:
        """Return the steps in segments.  A segment ends before a step in NumPy or after a check."""
        segments: list[GraphSegment] = []
        starts_segment = True
        for step in self.program.steps:
            enqueued = launches_of(step.kernel) is not None
            if starts_segment or not (enqueued and segments[-1].enqueued):
                segments.append(GraphSegment([step], enqueued))
            else:
                segments[-1].steps.append(step)
            starts_segment = step in self._flagged[-1:]  # no step so far has changed a parameter
        return segments

    # ------------------------------------------------------------ a call

    def __call__(self, inputs: Sequence[Array], done: Done = nothing) -> list[Array]:
        with self._run(inputs, done) as (outputs, bound):
            if self.bulk and self._warm and not self._graphs:
                self._graphs += self._capture(bound.calls.__getitem__)
                self.bulk = bool(self._graphs)
            self._launch_segments(self._graphs, bound.calls.__getitem__, bound.addresses)
        return outputs

    def _launch_segments(
        self, graphs: Sequence[int], calls: CallsOfStep, addresses: AddressMap
    ) -> None:
        """Launch the graph of each segment; without graphs make the calls of its steps."""
        remaining = iter(graphs)
        for steps, enqueued in self._segments:
            if graphs and enqueued:
                self.driver.launch_graph(next(remaining), self.driver.compute)
            else:
                for call in itertools.chain.from_iterable(map(calls, steps)):
                    call(self.driver.compute)
            self._check_flags(steps, addresses)
        self._warm = True

    def profile(
        self, inputs: Sequence[Array], done: Done = nothing
    ) -> tuple[list[Array], list[Timing]]:
        """Run once, and return the outputs and the time of each step, by the device's clock.

        Steps run in CUDA graphs with events between them, so a time includes a microsecond or two
        before the next kernel starts.  The first call loads kernels and launches them one by one.
        Then a time is at least that of a launch from Python, as for steps in NumPy.
        """
        driver, compute = self.driver, self.driver.compute
        with driver.current(), contextlib.ExitStack() as stack:
            events = [driver.event(timing=True) for _ in range(2 * len(self.program.steps) + 1)]
            stack.callback(driver.destroy, [], events)
            add_up = stack.enter_context(measured_exchanges(self.program.steps, driver))
            begin, *step_events = events
            step_pairs = zip(step_events[::2], step_events[1::2], strict=True)
            pairs = dict(zip(self.program.steps, step_pairs, strict=True))
            with self._run(inputs, done) as (outputs, bound):

                def timed(record: Callable[[int, int], None], step: Step) -> list[Call]:
                    before, after = (partial(record, event) for event in pairs[step])
                    return [before, *bound.calls[step], after]

                captured = partial(timed, driver.record_in_graph)
                graphs = self._capture(captured) if self._warm else []
                stack.callback(driver.destroy, graphs, [])
                driver.synchronize(compute)
                start = time.perf_counter()
                driver.record(begin, compute)
                self._launch_segments(graphs, partial(timed, driver.record), bound.addresses)
            driver.synchronize(compute)
            add_up(pairs)
            timings = [
                Timing(step, start + driver.seconds(begin, before), driver.seconds(before, after))
                for step, (before, after) in pairs.items()
            ]
        return outputs, timings

    @contextlib.contextmanager
    def _run(self, inputs: Sequence[Array], done: Done) -> Iterator[tuple[list[Array], BoundCalls]]:
        """Copy the inputs, run the block, which runs the steps, and finish the call.

        The block gets the output arrays and the program's calls; the results are in the arrays
        after the block.  No signal handler interrupts a call that changes parameters.

        The caller's stream waits for the call, even if it fails.  So kernels may use the caller's
        arrays directly: memory that the caller frees returns to the pool of the caller's stream,
        which uses it again only after the steps.  Likewise, outputs are allocated before the start
        event, so they are written after all earlier uses of their memory.  As with CuPy's own
        kernels, the caller keeps arrays of other streams alive.
        """
        driver, compute = self.driver, self.driver.compute
        signals = signals_deferred() if self.program.changed else contextlib.nullcontext()
        with driver.current(), signals, self._watching():
            caller = driver.current_stream()
            outputs = [driver.array(view.spec) for view in self.program.outputs]
            driver.record(self._start_event, caller)
            driver.wait(compute, self._start_event)
            try:
                self._check_inputs(inputs)
                for state in outdated_on(self._states, driver.device):
                    copy_of(state, driver)
                # Before any state is written, as the call may fail halfway.
                for state in self._changed:
                    state.mark_written(driver.device)
                if self._flagged:
                    driver.clear(self._flags, 4 * len(self._ranges), compute)
                bound = self._stage(inputs, outputs)
                yield outputs, bound
                self._finish(outputs, bound.addresses)
                done()
            finally:
                driver.record(self._end_event, compute)
                driver.wait(caller, self._end_event)

    def _watching(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a thread watches the call, if it has collectives."""
        if not self._collectives:
            return contextlib.nullcontext()
        first, *others = (kernel for kernel in self._collectives if kernel.begins)
        suffix = f" and {len(others)} more of the step" if others else ""
        watch = first.communicator.watch
        return watch.watching(f"{first.exchange.description}{suffix}", first.timeout)

    def _stage(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> BoundCalls:
        """Copy the inputs to the device, and return the program bound to the call's addresses."""
        arrays = dict(zip(self.program.inputs, inputs, strict=True))
        direct = {  # inputs that kernels read from the caller's memory
            buffer: x
            for buffer, x in arrays.items()
            if (self._moving and not isinstance(x, np.ndarray))
            and (x.data.device_id == self.driver.ordinal and x.data.ptr % LOAD_ALIGNMENT == 0)
        }
        self._staging.enqueue({b: x for b, x in arrays.items() if b not in direct})
        returned = zip(self.program.outputs, outputs, strict=True)
        addresses = {view.buffer: y.data.ptr for view, y in returned}
        addresses |= self._staging.addresses
        addresses |= {b: x.data.ptr for b, x in direct.items()}
        return self._bound(tuple(addresses[buffer] for buffer in self._moving))

    def _finish(self, outputs: Sequence[Array], addresses: AddressMap) -> None:
        """Copy results for the caller, and apply the updates that are not in place."""
        driver = self.driver
        returned = zip(self.program.outputs, outputs, strict=True)
        copies = [(v, y.data.ptr) for v, y in returned if v.buffer not in self._direct_outputs]
        copies += [(view, copy_of(p.state, driver).address) for p, view in self.program.updates]
        for view, target in copies:  # these views are contiguous
            source = addresses[view.buffer] + view.offset
            driver.copy(target, source, view.spec.nbytes, driver.compute)

    def _capture(self, calls: CallsOfStep) -> list[int]:
        """Return a graph for each segment, captured from the calls of its steps; [] on failure.

        With collectives a failure is an error, as all processes must capture theirs.
        """
        enqueued = [segment.steps for segment in self._segments if segment.enqueued]
        parts = [[*itertools.chain.from_iterable(map(calls, steps))] for steps in enqueued]
        for part, steps in zip(parts, enqueued, strict=True):  # a capture joins all its streams
            kernels = (step.kernel for step in steps)
            exchanges = (k.exchange for k in kernels if isinstance(k, NcclKernel) and k.begins)
            part += [exchange.join for exchange in exchanges]
        try:
            return capture(parts, self.driver)
        except (DeviceError, RuntimeError) as error:
            if self._collectives:
                raise DeviceError(f"the step cannot become a CUDA graph: {error}") from None
            warn_once(f"no CUDA graph could be made, so kernels are launched one by one: {error}")
            return []

    # ------------------------------------------------------------ integers out of range

    def _integers(self, step: Step) -> View:
        """Return the integers that a step checks."""
        return step.inputs[self._ranges[step].operand]

    def _is_input(self, step: Step) -> bool:
        """Whether the integers of a step are an input."""
        return self._integers(step).buffer.space is MemorySpace.INPUT

    def _check_inputs(self, inputs: Sequence[Array]) -> None:
        """Raise GraphError, before any step runs, if an input has an integer out of range.

        Steps check inputs that are large or on the device, also in later calls: the host could read
        an input on the device only after all earlier work there.
        """
        arrays = dict(zip(self.program.inputs, inputs, strict=True))
        new = []
        for step in filter(self._is_input, self._checks):
            array = arrays[self._integers(step).buffer]
            if isinstance(array, np.ndarray) and array.size <= MAX_CHECKED_BY_HOST:
                self._check(step, array)
            elif step not in self._flagged:
                new.append(step)
        if new:
            self._flagged = [s for s in self._checks if s in self._flagged or s in new]
            self._segments = self._split()
            if self._graphs:
                self.driver.synchronize(self.driver.compute)  # they may be running
                self.driver.destroy(self._graphs, [])
                self._graphs.clear()

    def _check(self, step: Step, memory: Array) -> None:
        """Raise GraphError if one of the integers in `memory` is out of range."""
        range = self._ranges[step]
        values = self._integers(step).array(memory)
        wrong = values[(values < range.low) | (values >= range.high)]
        if wrong.size:
            raise _refusal(step, f"{wrong[0]} is not in {range.low} ... {range.high - 1}")

    def _check_flags(self, steps: Sequence[Step], addresses: AddressMap) -> None:
        """Raise GraphError if a flag is set, after the segment that ends with the last check."""
        if not self._flagged or self._flagged[-1] not in steps[-1:]:
            return
        compute = self.driver.compute
        flags = np.zeros(len(self._ranges), np.int32)
        self.driver.download(flags, self._flags, compute)
        self.driver.synchronize(compute)
        for step in itertools.compress(self._ranges, flags):
            buffer = self._integers(step).buffer
            memory = np.empty(buffer.nbytes, np.uint8)
            self.driver.download(memory, addresses[buffer], compute)
            self.driver.synchronize(compute)
            self._check(step, memory)
            raise _refusal(step, "an integer is out of range")  # a later step has overwritten it


def _refusal(step: Step, text: str) -> GraphError:
    return located(GraphError(text), step.node.op.name, step.node.inputs, step.node.source)

"""Collectives on CUDA devices: calls of NCCL on a separate stream.

At the start, NCCL's stream waits for the step's stream; at the end, the step's stream waits for
NCCL's.  In between, the step's other kernels run concurrently.  A capture follows this fork and
join, so the step is still one graph.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from minigraph.devices.cuda.communicator import (
    COMBINATIONS,
    NCCL_TYPES,
    SUM,
    Communicator,
    communicator_of,
)
from minigraph.devices.cuda.driver import Driver, aligned
from minigraph.devices.cuda.generated import generated_kernel
from minigraph.devices.cuda.kernel import Addresses, Launch, LibraryKernel, Operands
from minigraph.graph import Node, input
from minigraph.ops.collective import (
    AllGather,
    AllReduce,
    Broadcast,
    Collective,
    Reduce,
    ReduceScatter,
)
from minigraph.ops.elementwise import astype, kind
from minigraph.ops.reduction import Max, Sum
from minigraph.passes.overlap import (
    AwaitCollective,
    PendingCollective,
    StartCollective,
    communicates,
    pending_collective,
)
from minigraph.program import Step, Traffic

REDUCTIONS = {"sum": Sum, "max": Max}


class NcclExchange:
    """A collective that a start and a wait share; each of the two has a kernel.

    end_event     event when the result is complete
    pending       whether no stream has waited for the result yet
    timing_event  event at the end of the exchange, while a profile measures it
    """

    def __init__(self, pending: PendingCollective, communicator: Communicator) -> None:
        self.description = str(pending)
        self.nbytes = pending.nbytes
        self.communicator = communicator
        driver = communicator.driver
        self._start_event, self.end_event = events = [driver.event() for _ in range(2)]
        weakref.finalize(self, driver.destroy, [], events).atexit = False
        self.pending = False
        self.timing_event: int | None = None
        self.times, self.pending_time, self.waited = 0, 0.0, 0.0

    def begin(self, stream: int, exchange: Callable[[], None]) -> None:
        """Enqueue the work of `exchange` on NCCL's stream after the present work of `stream`."""
        driver, nccl_stream = self.communicator.driver, self.communicator.stream
        driver.record(self._start_event, stream)
        driver.wait(nccl_stream, self._start_event)
        exchange()
        if self.timing_event is not None:
            captured = stream == driver.captured
            (driver.record_in_graph if captured else driver.record)(self.timing_event, nccl_stream)
        driver.record(self.end_event, nccl_stream)
        self.pending = True

    def join(self, stream: int) -> None:
        """Let a stream wait for the result, unless one has waited already."""
        if self.pending:
            self.communicator.driver.wait(stream, self.end_event)
            self.pending = False


_exchanges: weakref.WeakKeyDictionary[PendingCollective, NcclExchange] = weakref.WeakKeyDictionary()


class NcclKernel(LibraryKernel):
    """A collective, its start, or its wait.

    timeout  seconds that a call may wait for other processes
    """

    maker = "nccl"

    def __init__(self, node: Node, communicator: Communicator, timeout: float) -> None:
        self.begins = not isinstance(node.op, AwaitCollective)
        self.ends = not isinstance(node.op, StartCollective)
        pending = pending_collective(node)
        self.op = pending.op
        self.algorithm = self.op.name
        self.communicator = communicator
        self.timeout = timeout
        if pending not in _exchanges:
            _exchanges[pending] = NcclExchange(pending, communicator)
        self.exchange = _exchanges[pending]
        self.inplace = ((0,),)
        x = node.inputs[0].spec
        self.separate = self.begins and self.ends and self.op.pending_spec(x) != node.spec
        self.scratch = self.op.pending_spec(x).nbytes if self.separate else 0
        # NCCL's maximum drops NaN, and NCCL has no integers of 16 bits.
        keeps_nan = self.op.combines == "max" and kind(x.dtype) == "f"
        self.gathers = bool(self.op.combines) and (keeps_nan or x.dtype.name not in NCCL_TYPES)
        combining: Sequence[Launch] = []
        if self.gathers and self.begins:
            processors = communicator.driver.processors
            combining, self.scratch = _combining_launches(node, self.op, processors)
        super().__init__(node, combining)

    @property
    def traffic(self) -> Traffic | None:
        if not self.ends:
            return None
        e = self.exchange
        return Traffic(e.description, e.nbytes, e.times, e.pending_time, e.waited)

    def enqueue(self, inputs: Addresses, outputs: Addresses, scratch: int, stream: int) -> None:
        (x,), (y,), driver = inputs, outputs, self.communicator.driver
        if self.gathers:
            if self.begins:
                nbytes = self.node.inputs[0].spec.nbytes
                gather = partial(self.communicator.enqueue, "allGather", x, scratch)
                self.exchange.begin(stream, partial(gather, nbytes, "uint8"))
                self.exchange.join(stream)  # for the launches that follow
            elif x != y:
                driver.copy(y, x, self.node.spec.nbytes, stream)
            return
        shared = scratch if self.separate else y if self.begins else x
        if self.begins:
            self._begin(x, shared, stream)
        if self.ends:
            self.exchange.join(stream)
            if isinstance(self.op, Reduce) and self.op.world.rank != self.op.root:
                driver.clear(y, self.node.spec.nbytes, stream)
            elif shared != y:
                driver.copy(y, shared, self.node.spec.nbytes, stream)

    def _begin(self, x: int, shared: int, stream: int) -> None:
        """Copy x to memory that no kernel writes before the exchange ends, and exchange it.

        NCCL works in place if each process has its part at the part's position in the result.
        """
        op, spec = self.op, self.node.inputs[0].spec
        dtype, driver = spec.dtype.name, self.communicator.driver
        enqueue = self.communicator.enqueue
        mine = shared + op.world.rank * spec.nbytes if isinstance(op, AllGather) else shared
        if x != mine:
            driver.copy(mine, x, spec.nbytes, stream)

        def exchange() -> None:
            if isinstance(op, AllReduce):
                enqueue("allReduce", shared, shared, spec.size, dtype, COMBINATIONS[op.combines])
            elif isinstance(op, Reduce):
                enqueue("reduce", shared, shared, spec.size, dtype, SUM, op.root)
            elif isinstance(op, Broadcast):
                enqueue("broadcast", shared, shared, spec.nbytes, "uint8", op.root)
            elif isinstance(op, AllGather):
                enqueue("allGather", mine, shared, spec.nbytes, "uint8")
            else:
                assert isinstance(op, ReduceScatter)
                size = op.world.size
                part = shared + op.world.rank * (spec.nbytes // size)
                enqueue("reduceScatter", shared, part, spec.size // size, dtype, SUM)
                if part != shared:  # the result begins at the address of x
                    driver.copy(shared, part, spec.nbytes // size, self.communicator.stream)

        self.exchange.begin(stream, exchange)


def collective_kernel(node: Node, driver: Driver, timeout: float) -> NcclKernel | None:
    """Return the kernel for a collective, its start or its wait; None for other or empty nodes."""
    if not communicates(node) or not node.size:
        return None
    world = pending_collective(node).op.world
    return NcclKernel(node, communicator_of(world, driver, timeout), timeout)


def _combining_launches(node: Node, op: Collective, processors: int) -> tuple[list[Launch], int]:
    """Return launches that reduce the inputs of all processes, and the bytes of scratch memory.

    The scratch memory holds the inputs, process by process, then the scratch of the launches.
    """
    (x,) = node.inputs
    parts = input("x", (op.world.size, x.size), x.dtype)
    combined = REDUCTIONS[op.combines]((0,))(parts)
    nodes = [combined] if combined.dtype == x.dtype else [combined, astype(combined, x.dtype)]
    launches: list[Launch] = []
    x_offset, end = 0, aligned(parts.spec.nbytes)
    for stage in nodes:
        kernel = generated_kernel(stage, [stage.inputs[0].spec.strides], processors)
        assert kernel is not None, "reductions and casts are generated"
        is_last = stage is nodes[-1]
        scratch_offset = end if is_last else end + aligned(stage.spec.nbytes)
        select = partial(_in_scratch, x_offset, None if is_last else end, scratch_offset)
        launches += [launch.within(select) for launch in kernel.launches]
        x_offset, end = end, scratch_offset + aligned(kernel.scratch)
    return launches, end


def _in_scratch(
    x: int, y: int | None, offset: int, inputs: Addresses, outputs: Addresses, scratch: int
) -> Operands:
    """Return operands at these offsets in the scratch memory; None for y stands for the output."""
    return [scratch + x], outputs if y is None else [scratch + y], scratch + offset


EventPairs = Mapping[Step, tuple[int, int]]  # the events before and after each step


@contextlib.contextmanager
def measured_exchanges(
    steps: Sequence[Step], driver: Driver
) -> Iterator[Callable[[EventPairs], None]]:
    """Measure exchanges in the block; yield a function that adds up their times afterwards."""
    kernels = {step: step.kernel for step in steps if isinstance(step.kernel, NcclKernel)}
    for kernel in kernels.values():
        if kernel.begins:
            kernel.exchange.timing_event = driver.event(timing=True)

    def add_up(pairs: EventPairs) -> None:
        start_events: dict[NcclExchange, int] = {}
        for step, kernel in kernels.items():
            (before, after), exchange = pairs[step], kernel.exchange
            if kernel.begins:
                start_events[exchange] = before
            end = exchange.timing_event
            if kernel.ends and end is not None:
                exchange.times += 1
                exchange.pending_time += driver.seconds(start_events[exchange], end)
                exchange.waited += driver.seconds(before, after)

    try:
        yield add_up
    finally:
        for exchange in {kernel.exchange for kernel in kernels.values()}:
            if exchange.timing_event is not None:
                driver.destroy([], [exchange.timing_event])
                exchange.timing_event = None

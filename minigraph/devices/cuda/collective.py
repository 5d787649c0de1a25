"""Collectives on CUDA devices: calls of NCCL on a separate stream.

At the start, NCCL's stream waits for the step's; at the end, the step waits for NCCL's.  In between
the step's other kernels run concurrently.  A capture follows this fork and join, so the step stays
one graph.
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
    """A collective under way: of its two halves, each has a kernel.

    arrived  an event: the result is there
    pending  whether that is still to be waited for
    timing   the event at the end of the exchange that a profile measures
    """

    def __init__(self, pending: PendingCollective, communicator: Communicator) -> None:
        self.what = str(pending)
        self.nbytes = pending.nbytes
        self.communicator = communicator
        driver = communicator.driver
        self._begun, self.arrived = events = [driver.event() for _ in range(2)]
        weakref.finalize(self, driver.destroy, [], events).atexit = False
        self.pending = False
        self.timing: int | None = None
        self.times, self.pending_time, self.waited = 0, 0.0, 0.0

    def begin(self, stream: int, exchange: Callable[[], None]) -> None:
        """Enqueue the work of `exchange` on NCCL's stream after the present work of `stream`."""
        driver, other = self.communicator.driver, self.communicator.stream
        driver.record(self._begun, stream)
        driver.wait(other, self._begun)
        exchange()
        if self.timing is not None:
            captured = stream == driver.captured
            (driver.record_in_graph if captured else driver.record)(self.timing, other)
        driver.record(self.arrived, other)
        self.pending = True

    def join(self, stream: int) -> None:
        """Let a stream wait for the result, unless one has waited already."""
        if self.pending:
            self.communicator.driver.wait(stream, self.arrived)
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
        # NCCL's maximum loses NaN, and it has no integers of 16 bits.
        floats = self.op.combines == "max" and kind(x.dtype) == "f"
        self.gathers = bool(self.op.combines) and (floats or x.dtype.name not in NCCL_TYPES)
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
        return Traffic(e.what, e.nbytes, e.times, e.pending_time, e.waited)

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
        """Copy x to memory that no kernel writes before the end, and exchange it there.

        NCCL works in place if a process's part is at its position in the whole.
        """
        op, spec = self.op, self.node.inputs[0].spec
        dtype, driver = spec.dtype.name, self.communicator.driver
        enqueue = self.communicator.enqueue
        mine = shared + op.world.rank * spec.nbytes if isinstance(op, AllGather) else shared
        if x != mine:
            driver.copy(mine, x, spec.nbytes, stream)

        def exchange() -> None:
            if isinstance(op, AllReduce):
                enqueue("allReduce", shared, shared, spec.size, dtype, COMBINATIONS[op.how])
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
    """Return the kernel for a collective or a half of it; None for others and for no elements."""
    if not communicates(node) or not node.size:
        return None
    return NcclKernel(
        node, communicator_of(pending_collective(node).op.world, driver, timeout), timeout
    )


def _combining_launches(node: Node, op: Collective, processors: int) -> tuple[list[Launch], int]:
    """Return launches that reduce the x of all processes, and the bytes of scratch memory.

    The scratch memory holds the x, process by process, then the scratch of the launches.
    """
    (x,) = node.inputs
    parts = input("x", (op.world.size, x.size), x.dtype)
    combined = REDUCTIONS[op.combines]((0,))(parts)
    nodes = [combined] if combined.dtype == x.dtype else [combined, astype(combined, x.dtype)]
    made: list[Launch] = []
    place, end = 0, aligned(parts.spec.nbytes)
    for each in nodes:
        found = generated_kernel(each, [each.inputs[0].spec.strides], processors)
        assert found is not None, "reductions and casts are generated"
        last = each is nodes[-1]
        own = end if last else end + aligned(each.spec.nbytes)
        find = partial(_in_scratch, place, None if last else end, own)
        made += [launch.within(find) for launch in found.launches]
        place, end = end, own + aligned(found.scratch)
    return made, end


def _in_scratch(
    x: int, y: int | None, own: int, inputs: Addresses, outputs: Addresses, scratch: int
) -> Operands:
    """Return operands at these bytes of scratch memory; y None: the output."""
    return [scratch + x], outputs if y is None else [scratch + y], scratch + own


EventPairs = Mapping[Step, tuple[int, int]]  # which happen before and after each step


@contextlib.contextmanager
def measured_exchanges(
    steps: Sequence[Step], driver: Driver
) -> Iterator[Callable[[EventPairs], None]]:
    """Measure exchanges in the block; yield a function that adds up their times afterwards."""
    kernels = {step: step.kernel for step in steps if isinstance(step.kernel, NcclKernel)}
    for kernel in kernels.values():
        if kernel.begins:
            kernel.exchange.timing = driver.event(timing=True)

    def add_up(pairs: EventPairs) -> None:
        begun: dict[NcclExchange, int] = {}
        for step, kernel in kernels.items():
            (before, after), exchange = pairs[step], kernel.exchange
            if kernel.begins:
                begun[exchange] = before
            if kernel.ends and exchange.timing is not None:
                exchange.times += 1
                exchange.pending_time += driver.seconds(begun[exchange], exchange.timing)
                exchange.waited += driver.seconds(before, after)

    try:
        yield add_up
    finally:
        for exchange in {kernel.exchange for kernel in kernels.values()}:
            if exchange.timing is not None:
                driver.destroy([], [exchange.timing])
                exchange.timing = None

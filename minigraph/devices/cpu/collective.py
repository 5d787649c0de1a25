"""Collectives on the CPU: MPI's functions, called by address from the native program.

MPI moves data only inside its functions.  So the program calls one between kernels while a
collective is pending (`PendingExchanges`).
"""

from __future__ import annotations

import ctypes
import functools
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minigraph.devices.cpu.kernel import CpuKernel, Linker, NativeCall, Operands, Place
from minigraph.distributed import World
from minigraph.errors import GraphError
from minigraph.graph import Array, Node
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.jit.small_float import SMALL_FLOATS, conversions
from minigraph.jit.source import KernelSource
from minigraph.ops.collective import (
    AllGather,
    AllReduce,
    Broadcast,
    Collective,
    Reduce,
    ReduceScatter,
)
from minigraph.ops.elementwise import kind
from minigraph.passes.overlap import (
    AwaitCollective,
    PendingCollective,
    StartCollective,
    communicates,
    pending_collective,
)
from minigraph.program import Kernel, Step, Traffic

NATIVE_TIMEOUT = 1.0  # seconds of a native wait after which Python continues it
FOLDER = Path(__file__).parent
HEADER = (FOLDER / "pending.c").read_text().strip()
BEGIN_TEXT = (FOLDER / "collective_begin.c").read_text()
AWAIT = KernelSource((FOLDER / "collective_await.c").read_text(), (HEADER,))
PROGRESS = KernelSource(
    """
/* Test pending collectives.  The argument block: their number, MPI_Test, their addresses. */
int NAME(const int64_t *a, char **slots) {
  for (int64_t i = 0; i < a[0]; i++) mg_progress((int64_t *)a[2 + i], a[1]);
  return 0;
}
""",
    (HEADER,),
)
# Indices of the words of a pending collective, as in pending.c, and their number.
REQUEST, STATE, STARTED, FINISHED, PENDING_TIME, WAITING_TIME, TIMES, ERROR, WORDS = range(9)
IDLE, PENDING, DONE, FAILED = range(4)


class Call(NamedTuple):
    """A function of MPI, and the C expression that calls it."""

    function: str
    text: str


_TYPES = "void *, void *, int, void *, void *, void *, void *"
_REDUCTION = Call(
    "MPI_Iallreduce",
    f"((int (*)({_TYPES}))function)(in_place, y, count, type, op_or_root, comm, request)",
)
CALLS: dict[type[Collective], Call] = {
    AllReduce: _REDUCTION,
    Reduce: _REDUCTION,
    ReduceScatter: _REDUCTION._replace(function="MPI_Ireduce_scatter_block"),
    Broadcast: Call(
        "MPI_Ibcast",
        "((int (*)(void *, int, void *, int, void *, void *))function)"
        "(y, count, type, a[12], comm, request)",
    ),
    AllGather: Call(
        "MPI_Iallgather",
        "((int (*)(void *, int, void *, void *, int, void *, void *, void *))function)"
        "(in_place, 0, type, y, count, type, comm, request)",
    ),
}
# MPI's own MAX is undefined for NaN, and lacks 16-bit floats.
COMBINE_TEXT = """
void NAME(const T *x, T *y, const int *count, const void *type) {
  for (int64_t i = 0; i < *count; i++) {
    const C a = FROM(x[i]), b = FROM(y[i]);
    y[i] = TO(RESULT);
  }
}
"""
COMBINATIONS = {"sum": "a + b", "max": "a > b || a != a ? a : b"}
INTERRUPTED = (
    "an earlier call was interrupted, so the processes are at different steps; restart all of them"
)
TEST = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


class MpiExchange:
    """The state of a pending collective, in memory that native code shares."""

    def __init__(self, pending: PendingCollective) -> None:
        self.name = str(pending)
        self.nbytes = pending.nbytes
        self.world = pending.op.world
        self.words = np.zeros(WORDS, np.int64)
        self.words[TIMES] = -1

    @property
    def address(self) -> int:
        return int(self.words.ctypes.data)

    @property
    def test(self) -> int:
        return _function(self.world, "MPI_Test")

    def wait(self, timeout: float) -> None:
        """Wait for the end; raise GraphError after `timeout` seconds, or if the exchange failed."""
        begin = time.monotonic_ns()
        if self.words[STATE] == PENDING:
            self.world.wait(self._finished, self.name, timeout)
            self.words[WAITING_TIME] += (time.monotonic_ns() - begin) * int(self.words[TIMES] >= 0)
        if self.words[STATE] == FAILED:
            error = int(self.words[ERROR])
            why = f"MPI says: {self.world.mpi.Get_error_string(error)}" if error else INTERRUPTED
            raise GraphError(f"{self.name} failed: {why}")
        if self.words[TIMES] >= 0:
            self.words[PENDING_TIME] += self.words[FINISHED] - self.words[STARTED]
        self.words[TIMES] += 1
        self.words[STATE] = IDLE

    def _finished(self) -> bool:
        """Let MPI progress, and return whether the exchange has ended."""
        finished, status = ctypes.c_int(), (ctypes.c_int64 * 16)()
        error = TEST(self.test)(self.address, ctypes.byref(finished), status)
        if error:
            self.words[[ERROR, STATE]] = error, FAILED
        elif finished:
            self.words[[FINISHED, STATE]] = time.monotonic_ns(), DONE
        return bool(error or finished)


_exchanges: weakref.WeakKeyDictionary[PendingCollective, MpiExchange] = weakref.WeakKeyDictionary()


class CollectiveKernel(CpuKernel):
    """A collective, its start, or its wait.

    timeout  seconds after which a wait is an error
    """

    maker = "mpi"

    def __init__(self, node: Node, timeout: float) -> None:
        self.node = node
        self.begins = not isinstance(node.op, AwaitCollective)
        self.ends = not isinstance(node.op, StartCollective)
        pending = pending_collective(node)
        self.op = pending.op
        self.exchange = _exchanges.setdefault(pending, MpiExchange(pending))
        self.algorithm = self.op.name
        self.timeout = timeout
        self.inplace = ((0,),)
        x = node.inputs[0].spec
        self.separate = self.begins and self.ends and self.op.pending_spec(x) != node.spec
        if self.separate:
            self.scratch = self.op.pending_spec(x).nbytes
        self.fallback = TimeoutFallback(self)

    @property
    def traffic(self) -> Traffic | None:
        if not self.ends:
            return None
        exchange = self.exchange
        times, pending_time, waited = exchange.words[[TIMES, PENDING_TIME, WAITING_TIME]].tolist()
        return Traffic(
            exchange.name, exchange.nbytes, max(0, times), pending_time / 1e9, waited / 1e9
        )

    @property
    def texts(self) -> Sequence[KernelSource]:
        begin = [self._begin_source, *self._reduction_sources] if self.begins else []
        return [*begin, AWAIT, PROGRESS]

    @property
    def _begin_source(self) -> KernelSource:
        return KernelSource(with_macros(BEGIN_TEXT, CALL=CALLS[type(self.op)].text), (HEADER,))

    @property
    def _reduction_sources(self) -> list[KernelSource]:
        """The source of the reduction if MPI has none that is correct."""
        dtype = self.node.dtype
        combines = self.op.combines
        if not combines or kind(dtype) != "f" or (combines == "sum" and dtype not in SMALL_FLOATS):
            return []
        macros = {"C": c_type(dtype), "FROM": "", "TO": "", "RESULT": COMBINATIONS[combines]}
        support: tuple[str, ...] = ()
        if dtype in SMALL_FLOATS:
            macros["C"] = "float"
            macros["FROM"], macros["TO"], support = conversions(dtype)
        return [KernelSource(with_macros(COMBINE_TEXT, T=c_type(dtype), **macros), support)]

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        x, y = operands.inputs[0], operands.outputs[0]
        buffer = operands.scratch if self.separate else y if self.begins else x
        calls: list[NativeCall] = []
        if self.begins:
            calls.append(linker.call(self._begin_source, self._begin_block(x, buffer, linker)))
        if self.ends:
            clears = isinstance(self.op, Reduce) and self.op.world.rank != self.op.root
            words = [self.exchange.address, self.exchange.test, *buffer, *y]
            words += [self.node.spec.nbytes, int(clears), int(NATIVE_TIMEOUT * 1e9)]
            calls.append(linker.call(AWAIT, words))
        return calls

    def _begin_block(self, x: Place, buffer: Place, linker: Linker) -> list[int]:
        world, spec = self.op.world, self.node.inputs[0].spec
        moves_only = not self.op.combines
        name = spec.dtype.name
        dtype = "BYTE" if moves_only else _MPI_TYPES.get(name, f"{name.upper()}_T")
        count = spec.nbytes if moves_only else spec.size
        if isinstance(self.op, ReduceScatter):
            count //= world.size
        shift = world.rank * spec.nbytes if isinstance(self.op, AllGather) else 0
        op_or_root = self._mpi_op(linker) if not moves_only else getattr(self.op, "root", 0)
        words = [self.exchange.address, *x, *buffer, spec.nbytes, shift]
        words += [int(world.mpi.IN_PLACE), _function(world, CALLS[type(self.op)].function), count]
        return [*words, _handle(world, dtype), _signed(world.handle), op_or_root]

    def _mpi_op(self, linker: Linker) -> int:
        world = self.op.world
        for source in self._reduction_sources:
            return _create_op(world, linker.address(source))
        return _handle(world, self.op.combines.upper())


class TimeoutFallback(Kernel):
    """The fallback after a native timeout: wait in Python, or raise the collective's error."""

    maker = "mpi"

    def __init__(self, kernel: CollectiveKernel) -> None:
        self.kernel = kernel

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        kernel, (y,) = self.kernel, outputs
        kernel.exchange.wait(kernel.timeout)
        if isinstance(kernel.op, Reduce) and kernel.op.world.rank != kernel.op.root:
            y[...] = 0
        else:
            buffer = scratch.view(y.dtype) if kernel.separate else y if kernel.begins else inputs[0]
            np.copyto(y, buffer.reshape(-1)[: y.size].reshape(y.shape))


def collective_kernel(node: Node, timeout: float) -> CollectiveKernel | None:
    """Return the kernel for a collective, its start, or its wait.

    None for other nodes, for empty arrays, and for a world of one process.
    """
    if not communicates(node) or not node.size or pending_collective(node).op.world.size == 1:
        return None
    return CollectiveKernel(node, timeout)


class PendingExchanges:
    """The collectives that are pending at a step of a program, and the steps that started them."""

    def __init__(self) -> None:
        self._started: dict[MpiExchange, Step] = {}

    def progress_calls(self, step: Step, linker: Linker) -> list[tuple[NativeCall, Step]]:
        """Return the calls that let MPI progress after a step, each with the step it serves."""
        if isinstance(step.kernel, CollectiveKernel):
            exchange = step.kernel.exchange
            if step.kernel.ends:
                self._started.pop(exchange, None)
            else:
                self._started[exchange] = step
            return []
        if not self._started:
            return []
        pending = [*self._started]
        words = [len(pending), pending[0].test, *(exchange.address for exchange in pending)]
        return [(linker.call(PROGRESS, words), self._started[pending[-1]])]


# MPI's names of types that do not follow from NumPy's; 16-bit floats are sent as integers.
_MPI_TYPES = {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "float16": "UINT16_T",
    "bfloat16": "UINT16_T",
}


def _handle(world: World, name: str) -> int:
    return _signed(int(world.mpi._handleof(getattr(world.mpi, name))))


def _signed(handle: int) -> int:
    """Return a handle as a signed number; mpi4py returns its bits."""
    return handle - (handle >> 63 << 64)


def _function(world: World, name: str) -> int:
    """Return the address of one of MPI's functions, in the library that mpi4py uses."""
    function = getattr(ctypes.CDLL(world.mpi.__file__), name)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def _create_op(world: World, address: int) -> int:
    """Return MPI's handle of a commutative reduction by a C function."""
    create = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p)
    handle = ctypes.c_int64()
    error = create(_function(world, "MPI_Op_create"))(address, 1, ctypes.byref(handle))
    if error:
        raise GraphError(f"MPI_Op_create: {world.mpi.Get_error_string(error)}")
    return handle.value

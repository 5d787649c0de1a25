"""NCCL's communicators, which connect the devices of the processes.

NCCL is called through CuPy, on which the backend depends anyway.  (nccl4py also has non-blocking
communicators, but then each call, even a captured one, has to be polled.)  Only the start of a
communicator waits for other processes on the host, in a thread.  All other waits are on the device,
and the host is blocked only when it waits for a result, possibly in the user's code.  So a thread
polls whether the oldest call with exchanges has ended.  The device cannot cancel a call that takes
too long, or that needs a process that has ended.  Then the thread ends all processes, and each
prints the call that it was waiting for.

The code relies on these facts of NCCL's user guide (2.32) and `nccl.h`:

* A process uses one device, and a device belongs to one process of a communicator.
* All processes make the same calls in the same order.  `agreement` compares what they compile, and
  a program is a sequence of steps in one order.
* All processes capture the same calls and replay them: a function launches its first call and
  captures its second, and a failed capture is an error.
* The first, uncaptured call makes the connections.  Capture mode "thread local" is enough then.
* There is one communicator for each device, with all calls on one stream.  So graphs of different
  communicators never wait for each other, and streams order captured and other calls.
* Buffers need no registration, which is for other algorithms.
* A communicator is never destroyed: `ncclCommDestroy` and `ncclCommAbort` wait for the other
  processes of the machine, and for the destruction of every graph that captured its calls.  The
  end of the process frees everything.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from minigraph.devices.cuda.driver import Driver
from minigraph.distributed import World
from minigraph.distributed.world import end_all
from minigraph.errors import DeviceError, GraphError, install_command
from minigraph.platform import forks

# NCCL's numbers, which `nccl.h` fixes; it has no integers of 16 bits.
NCCL_TYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
SUM = 0
COMBINATIONS = {"sum": SUM, "max": 2}
POLL_SECONDS = 1.0  # seconds between two polls of the oldest call


class Communicator:
    """The connection of this process's device to those of all processes of a world.

    stream  stream of all exchanges
    watch   watches the calls with exchanges
    """

    def __init__(self, world: World, driver: Driver, timeout: float) -> None:
        self.world = world
        self.driver = driver
        self._nccl = _library()
        _check_threads(world)
        _check_distinct_devices(world, driver, timeout)
        self._handle = self._start(timeout)
        # Deallocating the handle would destroy the communicator.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._handle))
        self.stream = driver.high_priority_stream()  # other processes wait for its work
        self.watch = CallWatch(self)

    def _start(self, timeout: float) -> Any:
        """Return CuPy's communicator, started in a thread, as NCCL waits for all processes.

        If the start takes too long, the thread ends with the process.
        """
        nccl, world, driver = self._nccl, self.world, self.driver
        try:
            name = nccl.get_unique_id() if world.rank == 0 else None
        except nccl.NcclError as error:
            raise _failed(error) from None
        name = world.broadcast(name, timeout=timeout)
        results: list[Any] = []

        def start() -> None:
            try:
                with driver.current():
                    results.append(nccl.NcclCommunicator(world.size, name, world.rank))
            except Exception as error:
                results.append(error)

        threading.Thread(target=start, daemon=True).start()
        world.wait(lambda: bool(results), f"NCCL to connect {driver.device}", timeout)
        if isinstance(results[0], Exception):
            raise _failed(results[0])
        return results[0]

    def check(self) -> None:
        """Raise DeviceError if an exchange has failed."""
        self._call("check_async_error")

    def enqueue(self, name: str, x: int, y: int, count: int, dtype: str, *parameters: int) -> None:
        """Enqueue the exchange that NCCL calls `name`, of `count` elements from x to y."""
        self._call(name, x, y, count, NCCL_TYPES[dtype], *parameters, self.stream)

    def _call(self, name: str, *arguments: int) -> None:
        try:
            getattr(self._handle, name)(*arguments)
        except self._nccl.NcclError as error:
            raise _failed(error) from None


_connecting = forks.lock()
_connected: dict[tuple[World, Driver], Communicator] = {}


def communicator_of(world: World, driver: Driver, timeout: float) -> Communicator:
    """Return the communicator of a world for a device; each process starts it once.

    All processes start it at the same time.  Raises DeviceError if NCCL is missing or fails, or two
    processes have the same device.
    """
    with _connecting:
        if (world, driver) not in _connected:
            _connected[world, driver] = Communicator(world, driver, timeout)
        return _connected[world, driver]


def _library() -> Any:
    """Return CuPy's module for NCCL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the error below has the same text
        nccl: Any = importlib.import_module("cupy.cuda.nccl")
    if not nccl.available:
        raise DeviceError(
            "collectives on CUDA devices need NCCL, which was not found: "
            f"{install_command('cuda')} installs it, as nvidia-nccl-cu13"
        )
    return nccl


def _failed(error: Exception) -> DeviceError:
    return DeviceError(f"NCCL: {error} (set NCCL_DEBUG=WARN for details)")


def _check_threads(world: World) -> None:
    """Raise DeviceError if MPI supports one thread only: a second thread watches the processes."""
    mpi = world.mpi
    if mpi and mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise DeviceError(
            f"collectives on CUDA devices need an MPI that several threads may call, but "
            f"{mpi.get_vendor()[0]} was started for one thread: see mpi4py.rc.thread_level"
        )


def _check_distinct_devices(world: World, driver: Driver, timeout: float) -> None:
    """Raise DeviceError, in all processes, if two of them have the same device."""
    uuids = world.gather(driver.uuid, timeout)
    for rank, uuid in enumerate(uuids):
        if uuids.index(uuid) != rank:
            raise DeviceError(
                f"processes {uuids.index(uuid)} and {rank} have the same device, {driver.name}; "
                "NCCL allows one process for each device, so start as many processes on a machine "
                "as it has devices: `nvidia-smi -L` lists them"
            )


# ---------------------------------------------------------------- watching calls


@dataclass(eq=False)
class WatchedCall:
    """A call with collectives.

    what     description of its collectives
    timeout  seconds of waiting after which an error is raised
    end      event at its end, once the whole call is enqueued
    """

    what: str
    timeout: float
    end: int | None = None


class CallWatch:
    """The calls of this process that have collectives, in order."""

    def __init__(self, communicator: Communicator) -> None:
        self._world, self._driver = communicator.world, communicator.driver
        self._check = communicator.check
        self._calls: deque[WatchedCall] = deque()
        self._free: list[int] = []  # events
        self._process = os.getpid()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watching(self, what: str, timeout: float) -> Iterator[None]:
        """Watch the work that the block enqueues on the stream `compute` until the work ends."""
        self._forget_ended()
        call = WatchedCall(what, timeout)
        self._calls.append(call)
        if self._thread is None and self._world.size > 1:
            self._thread = threading.Thread(target=self._poll, daemon=True)
            self._thread.start()
            atexit.register(self._finish)  # before all processes end together
        try:
            yield
        finally:
            end = self._free.pop() if self._free else self._driver.event()
            self._driver.record(end, self._driver.compute)
            call.end = end

    def _forget_ended(self) -> None:
        while self._calls and self._ended(self._calls[0]):
            end = self._calls.popleft().end
            assert end is not None
            self._free.append(end)

    def _ended(self, call: WatchedCall) -> bool:
        return call.end is not None and self._driver.is_complete(call.end)

    def _poll(self) -> None:
        """Poll the oldest call forever, and wait for a call that is the oldest in two polls."""
        last: list[WatchedCall] = []
        with self._driver.current():
            while True:
                time.sleep(POLL_SECONDS)
                oldest = [*self._calls][:1]
                if oldest == last:
                    for call in oldest:
                        self._wait(call)
                last = oldest

    def _wait(self, call: WatchedCall) -> None:
        def ended() -> bool:
            if self._ended(call) or call not in self._calls:
                return True
            self._check()
            return False

        try:
            self._world.wait(ended, call.what, call.timeout)
        except GraphError as error:
            end_all(1, str(error))

    def _finish(self) -> None:
        """Wait for all calls, as the other processes need the remaining work of this device."""
        if os.getpid() == self._process:
            with self._driver.current():
                for call in [*self._calls]:
                    self._wait(call)

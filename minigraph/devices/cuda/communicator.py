"""NCCL's communicators: what connects the device of this process with those of the others.

NCCL is called through CuPy, which the backend has anyway.  nccl4py offers communicators that never
block besides; each of their calls then has to be asked whether it is done, those that are captured
too.  Here only the start of a communicator waits for other processes on the host, and a thread can
do that.  The rest is waited for on the device, where `CallWatch` sees it.

What is relied on, from NCCL's user guide (2.32) and `nccl.h`:

* A process uses one device, and a device belongs to one process of a communicator.
* All processes make the same calls in the same order.  `agreement` compares what they compile, and
  a program is a sequence of steps in one order.
* Whether a call is captured is the same in all processes, and a captured one is replayed by all of
  them: every function launches its first call and captures its second, and where that fails it
  fails for good.
* The first, uncaptured call makes the connections.  Capture mode "thread local" is enough then.
* There is one communicator for each device, and its calls are all on one stream.  So no two graphs
  of different communicators wait for each other, and NCCL's mixing of captured and other calls has
  nothing to order that the streams do not.
* Buffers need no registration; that is for other algorithms.
* A communicator is not destroyed: `ncclCommDestroy` and `ncclCommAbort` wait for the other
  processes of the machine, and for every graph that has captured its calls to be destroyed.  The
  end of the process gives everything back.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
import warnings
from typing import Any

from minigraph.devices.cuda.call_watch import CallWatch
from minigraph.devices.cuda.driver import Driver
from minigraph.distributed import World
from minigraph.errors import DeviceError, install_command
from minigraph.graph import DType
from minigraph.platform import forks

# NCCL's numbers, which `nccl.h` fixes; it has no integers of 16 bits.
TYPES = {
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
COMBINATIONS = {"sum": 0, "max": 2}


class Communicator:
    """The devices of all processes of a world, as this one sees them.

    stream  on which all their exchanges are
    watch   sees that calls with exchanges end
    """

    def __init__(self, world: World, driver: Driver, timeout: float) -> None:
        self.world = world
        self.driver = driver
        self._nccl = _library()
        _check_threads(world)
        _check_apart(world, driver, timeout)
        self._handle = self._started(timeout)
        # It must never be deallocated, which would destroy it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._handle))
        self.stream = driver.urgent_stream()  # the other processes wait for what is on it
        self.watch = CallWatch(world, driver, self.check)

    def _started(self, timeout: float) -> Any:
        """Return CuPy's communicator.  NCCL's start waits for all processes, so a thread does it.

        The thread of a start that takes too long ends with the process.
        """
        nccl, world, driver = self._nccl, self.world, self.driver
        name = _unique_id(nccl) if world.rank == 0 else None
        name = world.broadcast(name, timeout=timeout)
        made: list[Any] = []

        def start() -> None:
            try:
                with driver.current():
                    made.append(nccl.NcclCommunicator(world.size, name, world.rank))
            except Exception as error:
                made.append(error)

        threading.Thread(target=start, daemon=True).start()
        world.wait(lambda: bool(made), f"NCCL to connect {driver.device}", timeout)
        if isinstance(made[0], Exception):
            raise _failed(made[0])
        return made[0]

    def check(self) -> None:
        """Raise DeviceError if an exchange that was begun has failed."""
        self._call("check_async_error")

    # ------------------------------------------------------------ exchanges, on addresses

    def all_reduce(self, x: int, y: int, count: int, dtype: DType, how: str) -> None:
        """Enqueue that y becomes the sum or the maximum of all x."""
        self._call("allReduce", x, y, count, TYPES[dtype.name], COMBINATIONS[how], self.stream)

    def reduce(self, x: int, y: int, count: int, dtype: DType, root: int) -> None:
        """Enqueue that y of process `root` becomes the sum of all x."""
        arguments = count, TYPES[dtype.name], COMBINATIONS["sum"], root
        self._call("reduce", x, y, *arguments, self.stream)

    def reduce_scatter(self, x: int, y: int, count: int, dtype: DType) -> None:
        """Enqueue that y becomes this process's `count` elements of the sum of all x."""
        arguments = count, TYPES[dtype.name], COMBINATIONS["sum"]
        self._call("reduceScatter", x, y, *arguments, self.stream)

    def broadcast(self, x: int, y: int, nbytes: int, root: int) -> None:
        """Enqueue that y becomes the x of process `root`."""
        self._call("broadcast", x, y, nbytes, TYPES["uint8"], root, self.stream)

    def all_gather(self, x: int, y: int, nbytes: int) -> None:
        """Enqueue that y becomes all x, one after the other."""
        self._call("allGather", x, y, nbytes, TYPES["uint8"], self.stream)

    def _call(self, name: str, *arguments: int) -> None:
        try:
            getattr(self._handle, name)(*arguments)
        except self._nccl.NcclError as error:
            raise _failed(error) from None


_connecting = forks.lock()
_connected: dict[tuple[World, Driver], Communicator] = {}


def connected(world: World, driver: Driver, timeout: float) -> Communicator:
    """Return the communicator of a world for a device, which is started once a process.

    All processes start theirs at the same time.  DeviceError where NCCL is missing or fails, and
    where two processes have the same device.
    """
    with _connecting:
        if (world, driver) not in _connected:
            _connected[world, driver] = Communicator(world, driver, timeout)
        return _connected[world, driver]


def _library() -> Any:
    """Return CuPy's module for NCCL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says what the error below says
        nccl: Any = importlib.import_module("cupy.cuda.nccl")
    if not nccl.available:
        raise DeviceError(
            "collectives on CUDA devices need NCCL, which was not found: "
            f"{install_command('cuda')} brings it, as nvidia-nccl-cu13"
        )
    return nccl


def _unique_id(nccl: Any) -> Any:
    """Return what processes know a new communicator by."""
    try:
        return nccl.get_unique_id()
    except nccl.NcclError as error:
        raise _failed(error) from None


def _failed(error: Exception) -> DeviceError:
    return DeviceError(f"NCCL: {error} (NCCL_DEBUG=WARN makes it say more)")


def _check_threads(world: World) -> None:
    """Raise DeviceError if MPI is for one thread: another looks what the processes do."""
    mpi = world.mpi
    if mpi and mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise DeviceError(
            f"collectives on CUDA devices need an MPI that several threads may call; "
            f"{mpi.get_vendor()[0]} was started for fewer: see mpi4py.rc.thread_level"
        )


def _check_apart(world: World, driver: Driver, timeout: float) -> None:
    """Raise DeviceError, in all processes, if two of them have the same device."""
    given = world.gather(driver.uuid, timeout)
    for rank, uuid in enumerate(given):
        if given.index(uuid) != rank:
            raise DeviceError(
                f"processes {given.index(uuid)} and {rank} have the same device, {driver.name}; "
                "NCCL takes one process for each, so start as many on a machine as it has: "
                "`nvidia-smi -L` lists them"
            )

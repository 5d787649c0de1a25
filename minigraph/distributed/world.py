"""The world: all processes of a launcher, with collectives of Python data.

The collectives of a step are ops.  Those of the world exchange choices, checks and metrics, and
have a deadline.  A process that fails ends all others; one that exits normally waits for them.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np

from minigraph import options
from minigraph.arguments import Kind, at_least, checked, instance_of, with_predicate
from minigraph.errors import GraphError, install_command
from minigraph.platform import forks
from minigraph.platform.launcher import launched

MAX_UNPUBLISHED_WAIT = 0.01  # seconds; longer waits are published
POLL_SECONDS = 0.001  # between two polls of a long wait, or for an answer
END_CHECK_SECONDS = 1.0  # between two checks, during a wait, whether a process has ended
ANSWER_TIMEOUT = 2.0  # seconds in which other processes may report what they wait for
ENDED_TEXT = "has ended"
BUSY_TEXT = "is in no collective: it computes, is stopped or hangs"
MAX_TEXT_BYTES = 240
MAX_SHOWN_RANKS = 9  # ranks of a group in a message
INTERRUPTED_STATUS = 130  # the exit status of a program that Ctrl-C ended
FLUSH_SECONDS = 0.2  # in which a launcher forwards printed text, which Abort may cut off
FIRST_PROCESS_HEADSTART = 1.0  # seconds for process 0 to print an error and end all processes
EXCHANGE_KINDS = ("barrier", "broadcast", "gather", "any", "native")  # each has a communicator


Rank = Annotated[int, at_least(0)]
Seconds = Annotated[float, Kind("a number of seconds > 0", with_predicate(lambda s: s > 0, float))]


class Board:
    """An MPI window in which each process of a communicator has a text.

    A text can be read while its process is in an MPI call; on the same machine, always.  Any thread
    may read or write.
    """

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._lock = forks.lock()
        self._comm = comm.Dup()
        self._window = mpi.Win.Allocate(MAX_TEXT_BYTES, 1, comm=comm)
        self._text = np.frombuffer(self._window.tomemory(), np.uint8)
        self._questions: dict[int, tuple[Any, Any]] = {}  # requests, and their buffers
        self.write("")
        self._window.Lock_all()

    def write(self, text: str) -> None:
        """Publish a text for the other processes; "" if this process does not wait."""
        data = text.encode()[:MAX_TEXT_BYTES]
        with self._lock:
            self._text[: len(data)] = np.frombuffer(data, np.uint8)
            self._text[len(data) :] = 0

    def read(self, timeout: float) -> dict[int, str]:
        """Return by rank the texts of the other processes that answer within `timeout` seconds."""
        texts: dict[int, str] = {}
        end = time.monotonic() + timeout
        with self._lock:
            for rank in set(range(self._comm.size)) - {self._comm.rank} - self._questions.keys():
                answer = np.empty(MAX_TEXT_BYTES, np.uint8)
                self._questions[rank] = self._window.Rget(answer, rank), answer
            while self._questions:
                for rank, (request, answer) in list(self._questions.items()):
                    if request.Test():
                        texts[rank] = answer.tobytes().rstrip(b"\0").decode(errors="replace")
                        del self._questions[rank]
                if time.monotonic() >= end:
                    break
                time.sleep(POLL_SECONDS)
        return texts

    def finalize(self) -> None:
        """Publish that this process ends, and wait until all processes end."""
        self.write(ENDED_TEXT)
        request = self._comm.Ibarrier()
        while not request.Test():
            time.sleep(POLL_SECONDS)
        self._window.Unlock_all()
        self._window.Free()


class World:
    """The processes of a launcher.

    rank  number of this process, from 0
    size  number of processes
    mpi   mpi4py's module; None in a world of one process

    All processes call the methods in the same order.  A call that waits longer than `timeout`
    seconds (by default the option `distributed.timeout`), or for a process that has ended, raises a
    GraphError with the activity of each process.

    >>> import minigraph as mg
    >>> world = mg.distributed.world()
    >>> world.rank, world.size, world.gather("here")
    (0, 1, ['here'])
    """

    def __init__(self, mpi: Any = None) -> None:
        self.rank, self.size = 0, 1
        self.mpi = mpi
        self._comms: dict[str, Any] = {}
        self._board: Board | None = None
        self._waits: list[str] = []  # of all threads
        if mpi:
            everyone = mpi.COMM_WORLD
            self.rank, self.size = everyone.rank, everyone.size
            # A communicator for each kind of exchange keeps MPI from matching different kinds.
            self._comms = {use: everyone.Dup() for use in EXCHANGE_KINDS}
            self._board = Board(mpi, everyone)
            _end_together(everyone, self._board.finalize)

    def __repr__(self) -> str:
        return f"World(size={self.size})"  # the same in all processes

    @property
    def handle(self) -> int:
        """The C handle of a communicator of all processes that only native code uses."""
        if not self._comms:
            raise GraphError("a world of one process has no communicator")
        return int(self.mpi._handleof(self._comms["native"]))

    @checked
    def barrier(self, timeout: Seconds | None = None) -> None:
        """Wait until all processes have called this method."""
        self._exchange("barrier", "a barrier", None, timeout)

    @checked
    def broadcast(self, value: Any, root: Rank = 0, timeout: Seconds | None = None) -> Any:
        """Return the value of process `root`, Python data that can be pickled."""
        if root >= self.size:
            raise GraphError(f"root is {root}; it takes a rank from 0 to {self.size - 1}")
        data = value if self.rank == root else None
        values = self._exchange("broadcast", f"a broadcast of process {root}", data, timeout)
        return value if self.rank == root else values[root]

    @checked
    def gather(self, value: Any, timeout: Seconds | None = None) -> list[Any]:
        """Return the values of all processes, by rank: Python data that can be pickled."""
        return self._exchange("gather", "values of all processes", value, timeout)

    @checked
    def any(self, flag: bool, timeout: Seconds | None = None) -> bool:
        """Return whether the flag of at least one process is True."""
        return True in self._exchange("any", "a flag of all processes", flag, timeout)

    def _exchange(self, use: str, what: str, value: Any, timeout: float | None) -> list[Any]:
        """Return the values of all processes, by rank.

        use   name of the communicator
        what  description for the error after a timeout
        """
        if not self._comms:
            return [value]
        comm = self._comms[use]
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        lengths = np.empty(self.size, np.int64)
        length = np.array([len(data)], np.int64)
        self.wait(comm.Iallgather(length, lengths).Test, what, timeout)
        received = np.empty(int(lengths.sum()), np.uint8)
        buffers = [received, lengths.tolist()]
        self.wait(comm.Iallgatherv(data, buffers).Test, what, timeout)
        parts = np.split(received, lengths.cumsum()[:-1])
        return [pickle.loads(part.tobytes()) for part in parts]

    def gather_arrays(self, x: Any, what: str, timeout: float | None = None) -> Any:
        """Return the arrays of all processes, which have one shape and dtype, stacked by rank.

        what  description for the error after a timeout
        """
        gathered = np.empty((self.size, *x.shape), x.dtype)
        local = np.ascontiguousarray(x).reshape(-1)
        if self._comms:
            data, buffer = local.view(np.uint8), gathered.reshape(-1).view(np.uint8)
            self.wait(self._comms["native"].Iallgather(data, buffer).Test, what, timeout)
        else:
            gathered[0] = x
        return gathered

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Publish during the block that this process waits for `what`."""
        if self._board is None:
            yield
            return
        self._waits.append(what)
        self._board.write(self._activity)
        try:
            yield
        finally:
            self._waits.remove(what)
            self._board.write(self._activity)

    @property
    def _activity(self) -> str:
        return f"waits for {' and '.join(self._waits)}" if self._waits else ""

    def overdue(self, what: str, seconds: float) -> GraphError:
        """Return the error of a timeout, with the activity of each process."""
        texts = {self.rank: f"waits for {what}"}
        if self._board is not None:
            texts |= self._board.read(ANSWER_TIMEOUT)
        option = "" if ENDED_TEXT in texts.values() else " (option distributed.timeout)"
        return GraphError(
            f"process {self.rank} waited {seconds:.3g} s for {what}{option}: "
            f"{grouped_activities(self.size, texts)}"
        )

    def wait(self, is_done: Callable[[], bool], what: str, timeout: float | None = None) -> None:
        """Wait until `is_done()` is true; raise GraphError at the deadline or the end of a process.

        is_done  lets MPI progress, and returns whether the wait is over
        """
        if _poll_until(is_done, MAX_UNPUBLISHED_WAIT):
            return
        default = options.resolve({})["distributed.timeout"]
        start = time.monotonic()
        end = start + (default if timeout is None else timeout)
        has_ended = False
        with self.waiting(what):
            while not _poll_until(is_done, min(END_CHECK_SECONDS, end - time.monotonic())):
                # A process that had ended at the last check has sent everything.
                if has_ended or time.monotonic() >= end:
                    raise self.overdue(what, time.monotonic() - start)
                has_ended = (
                    self._board is not None
                    and ENDED_TEXT in self._board.read(POLL_SECONDS).values()
                )


def grouped_activities(size: int, texts: dict[int, str]) -> str:
    """Return the activities of processes in words, grouped by activity."""
    groups: dict[str, list[int]] = {}
    for rank in range(size):
        groups.setdefault(texts.get(rank) or BUSY_TEXT, []).append(rank)
    return "; ".join(f"{_processes(ranks)} {activity}" for activity, ranks in groups.items())


def _processes(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"process {ranks[0]}"
    excess = len(ranks) - MAX_SHOWN_RANKS
    remainder = f" and {excess} more" if excess > 0 else ""
    return f"each of processes {', '.join(map(str, ranks[:MAX_SHOWN_RANKS]))}{remainder}"


def _poll_until(is_done: Callable[[], bool], seconds: float) -> bool:
    """Return whether `is_done()` is true within `seconds`."""
    start = time.monotonic()
    while not is_done():
        waited = time.monotonic() - start
        if waited >= seconds:
            return False
        time.sleep(min(waited / 10, POLL_SECONDS))
    return True


@functools.cache
def world() -> World:
    """Return the world of this process's launcher; a world of one process without a launcher.

    A launcher, such as `mpiexec -n 4 python train.py` or `srun --mpi=pmi2`, is detected by its
    environment variables.  Then mpi4py is imported, and an uncaught exception in one process ends
    all processes, so that none waits for it.

    Raises GraphError if mpi4py is missing, or belongs to another MPI than the launcher.
    """
    launcher, size = launched()
    if size == 1:
        return World()
    try:
        mpi: Any = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise GraphError(
            f"{launcher} says that a launcher started several processes, which need mpi4py; mpi4py "
            f"cannot be imported ({error}): {install_command('mpi')}"
        ) from error
    if size is not None and mpi.COMM_WORLD.size != size:
        raise GraphError(
            f"{launcher} says that a launcher started {size} processes, but mpi4py's MPI, "
            f"{mpi.get_vendor()[0]}, sees {mpi.COMM_WORLD.size}; use the mpiexec of that MPI"
        )
    return World(mpi)


Processes = Annotated[World, instance_of(World, "what mg.distributed.world() returned")]


# ---------------------------------------------------------------- exit

_everyone: list[Any] = []  # the communicator of all processes, if a launcher started several


def _end_together(comm: Any, leave: Callable[[], None]) -> None:
    """Let an uncaught exception end all processes; otherwise let them exit together.

    comm   communicator of all processes
    leave  waits until all processes exit
    """
    process, excepthook = os.getpid(), sys.excepthook

    def end_all_processes(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if os.getpid() != process:  # a forked child does not belong to MPI
            excepthook(kind, error, trace)
            return
        status = INTERRUPTED_STATUS if issubclass(kind, KeyboardInterrupt) else 1
        end_all(status, "".join(traceback.format_exception(kind, error, trace)).rstrip())

    def wait_at_exit() -> None:
        if os.getpid() == process:
            leave()

    _everyone.append(comm)
    sys.excepthook = end_all_processes
    atexit.register(wait_at_exit)


def end_all(status: int, text: str) -> None:
    """Print a text and this process's rank, and end all processes; do nothing without others.

    An error that all processes raise is printed once, because process 0 ends the others first.

    status  exit status of the launcher
    """
    for comm in _everyone:
        if comm.rank:
            time.sleep(FIRST_PROCESS_HEADSTART)
        print(f"{text}\nminigraph: process {comm.rank} of {comm.size} ends all", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(FLUSH_SECONDS)
        comm.Abort(status)
        os._exit(status)  # in some MPI implementations Abort returns

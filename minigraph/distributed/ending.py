"""The end of a process that others wait for: it ends all of them, or waits until all end."""

from __future__ import annotations

import atexit
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

INTERRUPTED = 130  # the exit status of a program that Ctrl-C ended
MOMENT = 0.2  # seconds in which a launcher passes on what was printed: Abort may cut that off
PRECEDENCE = 1.0  # seconds that process 0 has to print an error and end all, before others do

_everyone: list[Any] = []  # the communicator of MPI, once there is one


def together(comm: Any, leave: Callable[[], None]) -> None:
    """Let an exception that nobody catches end all processes; else let them end together.

    comm   a communicator of MPI with all processes
    leave  waits until all processes end
    """
    process, usual = os.getpid(), sys.excepthook

    def failed(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if os.getpid() != process:  # a forked child is no process of MPI
            usual(kind, error, trace)
            return
        status = INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1
        end_all(status, "".join(traceback.format_exception(kind, error, trace)).rstrip())

    def left() -> None:
        if os.getpid() == process:
            leave()

    _everyone.append(comm)
    sys.excepthook = failed
    atexit.register(left)


def end_all(status: int, text: str) -> None:
    """Print a text and which process it is from, and end all; do nothing if there is no other.

    An error that all processes have is printed once: process 0 has ended the others by then.

    status  that of the launcher
    """
    for comm in _everyone:
        if comm.rank:
            time.sleep(PRECEDENCE)
        print(f"{text}\nminigraph: process {comm.rank} of {comm.size} ends all", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(MOMENT)
        comm.Abort(status)
        os._exit(status)  # some MPI returns, and the launcher ends this process soon

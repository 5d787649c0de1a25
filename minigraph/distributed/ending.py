"""The end of a process that others wait for: it ends all of them, or waits until all end."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

INTERRUPTED = 130  # the exit status of a program that Ctrl-C ended
MOMENT = 0.2  # seconds in which a launcher passes on what was printed: Abort may cut that off

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
        usual(kind, error, trace)
        if os.getpid() == process:  # a forked child is no process of MPI
            interrupted = issubclass(kind, KeyboardInterrupt)
            end_all(INTERRUPTED if interrupted else 1, kind.__name__)

    def left() -> None:
        if os.getpid() == process:
            leave()

    _everyone.append(comm)
    sys.excepthook = failed
    atexit.register(left)


def end_all(status: int, reason: str) -> None:
    """End all processes now, with one line that names this one; do nothing if it is the only one.

    status  that of the launcher
    reason  a few words; the error itself has been printed
    """
    for comm in _everyone:
        line = f"minigraph: process {comm.rank} of {comm.size} ends all ({reason})"
        print(line, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(MOMENT)
        comm.Abort(status)

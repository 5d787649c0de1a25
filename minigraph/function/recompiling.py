"""Compiling a function anew in another thread, while it is called."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from minigraph.autotune import background
from minigraph.messages import silent

NICENESS = 10  # 110 of 1024, the weight of a usual thread

T = TypeVar("T")


class Recompiling(Generic[T]):
    """What a thread makes, in the time that calls leave it.

    On Linux the thread has a tenth of the weight of others.  So during a call it gets little more
    than the processors that the call does not use, and all while the caller waits.  The compilers
    that it starts are as nice, but lead sessions: where the system shares the processors among
    sessions first (sched(7), autogroup), they have the weight of another program.  The thread has
    some weight, since a thread that never runs beside other busy programs (SCHED_IDLE) may stop
    while it holds the interpreter's lock.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._made = background.begun(self._run, "minigraph recompiles")

    def _run(self) -> T:
        if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        with silent():
            return self._make()

    def done(self, seconds: float | None) -> bool:
        """Wait for at most so long, None: for ever; return whether there is a result, or error."""
        if self._process != os.getpid():  # a forked child has no thread of its parent's
            self._begin()
        with suppress(TimeoutError):
            self._made.exception(seconds)
        return self._made.done()

    def result(self) -> T:
        """Return what was made, once it is; raises what making it raised."""
        self.done(0.0)
        return self._made.result()

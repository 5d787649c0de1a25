"""The calls of a function: how many were done, and the one that runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from minigraph.errors import GraphError
from minigraph.graph import here
from minigraph.platform import forks

T = TypeVar("T")


class _Here(threading.local):
    """Whether the current thread runs a call."""

    runs = False


class CallCounter:
    """How many calls of a function were done, its seed, and the lock of the call that runs.

    The functions of different sizes that make one function share it: their calls come one after
    the other, because they share memory for intermediate results, too.
    """

    def __init__(self, seed: int) -> None:
        self.calls = np.zeros((), np.uint64)
        self.seed = np.array(seed, np.uint64)
        self._running = forks.reentrant_lock()
        self._here = _Here()

    def alone(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, a call, after the calls of other threads."""
        if self._here.runs:
            raise GraphError(
                f"a function was called, by the handler of a signal, while it ran {here()}"
            )
        with self._running:
            try:
                self._here.runs = True
                return work()
            finally:
                self._here.runs = False

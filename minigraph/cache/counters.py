"""Counters of kernels and measurements: `mg.jit.stats()` and `mg.autotune.stats()`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from minigraph.platform import forks

T = TypeVar("T", bound=Any)


@dataclass
class KernelStats:
    """Counts since the process began or `mg.jit.reset_stats()` was called.

    compilations  kernels compiled
    memory_hits   kernels that this process had compiled or loaded before
    disk_hits     kernels whose binary was on disk
    loads         kernels whose binary was loaded into the process
    """

    compilations: int = 0
    memory_hits: int = 0
    disk_hits: int = 0
    loads: int = 0


@dataclass
class TuningStats:
    """Counts since the process began or `mg.autotune.reset_stats()` was called.

    measurements  candidates timed
    hits          problems whose measurements were known
    misses        problems whose measurements were not known
    rejected      cache entries that were damaged or made elsewhere
    """

    measurements: int = 0
    hits: int = 0
    misses: int = 0
    rejected: int = 0


class Counters(Generic[T]):
    """The counts of one of these classes, to which several threads may add."""

    def __init__(self, stats: type[T]) -> None:
        self._class = stats
        self._counts = stats()
        self._lock = forks.lock()  # `+=` on an attribute is not atomic

    def stats(self) -> T:
        """Return a copy of the counts."""
        with self._lock:
            return replace(self._counts)

    def reset_stats(self) -> None:
        """Set all counts to zero."""
        with self._lock:
            self._counts = self._class()

    def count(self, name: str, by: int = 1) -> None:
        with self._lock:
            setattr(self._counts, name, getattr(self._counts, name) + by)


kernel_counters = Counters(KernelStats)
tuning_counters = Counters(TuningStats)

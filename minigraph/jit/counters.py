"""Counts of what was compiled and what was found compiled, for `mg.jit.stats()`."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


@dataclass
class Stats:
    """Since the process began, or since `reset_stats`.

    compilations  kernels compiled
    memory_hits   kernels that this process had compiled or loaded before
    disk_hits     kernels whose binary was on disk
    loads         kernels whose binary was loaded into the process
    """

    compilations: int = 0
    memory_hits: int = 0
    disk_hits: int = 0
    loads: int = 0


_stats = Stats()
_lock = threading.Lock()  # `+=` on an attribute is no single step


def stats() -> Stats:
    """Return a copy of the counts."""
    with _lock:
        return replace(_stats)


def reset_stats() -> None:
    """Set all counts to zero."""
    with _lock:
        count_of = vars(_stats)
        count_of.update(dict.fromkeys(count_of, 0))


def count(what: str, by: int = 1) -> None:
    """Add to a count."""
    with _lock:
        setattr(_stats, what, getattr(_stats, what) + by)

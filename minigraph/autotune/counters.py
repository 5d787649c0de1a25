"""Counts of what was measured and what was found measured, for `mg.autotune.stats()`."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


@dataclass
class Stats:
    """Since the process began, or since `reset_stats`.

    measurements  candidates timed
    hits          problems whose measurements were found
    misses        problems whose measurements were not found
    rejected      entries that were found, but damaged
    """

    measurements: int = 0
    hits: int = 0
    misses: int = 0
    rejected: int = 0


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

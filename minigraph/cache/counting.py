"""Counts of what a process has done, which several threads may add to."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=Any)


class Counts(Generic[T]):
    """The counts of a dataclass whose fields are numbers, all of them 0 at first."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._counts = kind()
        self._lock = threading.Lock()  # `+=` on an attribute is no single step

    def stats(self) -> T:
        """Return a copy of the counts."""
        with self._lock:
            return replace(self._counts)

    def reset_stats(self) -> None:
        """Set all counts to zero."""
        with self._lock:
            self._counts = self._kind()

    def count(self, what: str, by: int = 1) -> None:
        """Add to a count."""
        with self._lock:
            setattr(self._counts, what, getattr(self._counts, what) + by)

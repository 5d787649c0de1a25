"""Counts of what was measured and what was found measured, for `mg.autotune.stats()`."""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.cache.counting import Counts


@dataclass
class TuningStats:
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


_counts = Counts(TuningStats)
stats, reset_stats, count = _counts.stats, _counts.reset_stats, _counts.count

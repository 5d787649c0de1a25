"""Counts of what was compiled and what was found compiled, for `mg.jit.stats()`."""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.cache.counting import Counts


@dataclass
class KernelStats:
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


_counts = Counts(KernelStats)
stats, reset_stats, count = _counts.stats, _counts.reset_stats, _counts.count

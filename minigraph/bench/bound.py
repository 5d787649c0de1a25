"""The bound: how long a step takes at least on this machine, and what share of it is reached."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from minigraph.bench.results import CaseResult

GIGA = 1e9
# What one step of the probe moves (bytes) or computes (operations).
COPIED, MATRIX = 1 << 24, 1536
IMAGES, CHANNELS, PIXELS = 8, 128, 28
COPIES = dict.fromkeys(("copy", "copy by NumPy"), 8 * COPIED)
ARITHMETIC = {
    "product": 2 * MATRIX**3,
    "product by NumPy": 2 * MATRIX**3,
    "convolution": 2 * IMAGES * (CHANNELS * PIXELS * 3) ** 2,
}


@dataclass(frozen=True)
class Bound:
    """A roofline: the slower of moving the bytes and computing the operations.

    bandwidth  bytes a second, of the fastest copy in the same rounds as the case
    peak       operations a second, of the fastest product or convolution
    """

    bandwidth: float
    peak: float
    bytes: int
    flops: int

    @property
    def of_memory(self) -> bool:
        return self.bytes / self.bandwidth >= self.flops / self.peak

    @property
    def seconds(self) -> float:
        return max(self.bytes / self.bandwidth, self.flops / self.peak)

    def __str__(self) -> str:
        if self.of_memory:
            return f"{self.bytes / 1e6:,.1f} MB at {self.bandwidth / GIGA:.1f} GB/s"
        return f"{self.flops / GIGA:,.4g} GFLOP at {self.peak / GIGA:,.0f} GFLOP/s"


def bound(case: CaseResult) -> Bound | None:
    """Return the bound of a case; None if the machine was not measured beside it."""
    rates = {name: statistics.median(seconds) for name, seconds in case.machine.items() if seconds}
    copies = [amount / rates[name] for name, amount in COPIES.items() if name in rates]
    arithmetic = [amount / rates[name] for name, amount in ARITHMETIC.items() if name in rates]
    if not copies or not arithmetic:
        return None
    return Bound(max(copies), max(arithmetic), case.bytes, case.flops)

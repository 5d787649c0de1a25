"""The bound: how long a step takes at least on this machine, and what share of it is reached."""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.bench.results import CaseResult

GIGA = 1e9


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
    steps = [step for step in case.machine.values() if step.seconds]
    copies = [step.bytes / step.median for step in steps if step.bytes]
    arithmetic = [step.flops / step.median for step in steps if step.flops]
    if not copies or not arithmetic:
        return None
    return Bound(max(copies), max(arithmetic), case.bytes, case.flops)

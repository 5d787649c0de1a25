"""The bound: how long a step takes at least on this machine, and what share of it is reached."""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.bench.results import CaseResult
from minigraph.bench.scale import PRODUCT

GIGA = 1e9


@dataclass(frozen=True)
class Bound:
    """A roofline: the slower of moving the bytes and computing the operations.

    bandwidth  bytes a second, of the fastest copy in the same rounds as the case
    peak       operations a second, of a product of matrices in the same rounds
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
    steps = {name: step for name, step in case.machine.items() if step.seconds}
    copies = [step.bytes / step.median for step in steps.values() if step.bytes]
    if not copies or PRODUCT not in steps:
        return None
    peak = steps[PRODUCT].flops / steps[PRODUCT].median
    return Bound(max(copies), peak, case.bytes, case.flops)

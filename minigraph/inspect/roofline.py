"""The least time of a step: what it moves and computes, and how fast the device does either.

S. Williams, A. Waterman, D. Patterson (2009), Roofline: an insightful visual performance model,
https://doi.org/10.1145/1498765.1498785.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minigraph.devices.problem import operations
from minigraph.graph import Graph, Node, Parameter
from minigraph.program import Backend
from minigraph.program.lower import lower
from minigraph.program.memory import plan

GIGA = 1e9
COPIED = 1 << 24  # elements, more than caches hold
MATRIX = 1024
RUNS = 5


@dataclass(frozen=True)
class Roofline:
    """A roofline: the time to move the bytes or to compute the operations, whichever is longer.

    bandwidth  bytes a second of the fastest copy
    peak       operations a second of the fastest matrix product
    """

    bandwidth: float
    peak: float
    bytes: int
    flops: int

    @property
    def is_memory_bound(self) -> bool:
        return self.bytes / self.bandwidth >= self.flops / self.peak

    @property
    def seconds(self) -> float:
        return max(self.bytes / self.bandwidth, self.flops / self.peak)

    def __str__(self) -> str:
        if self.is_memory_bound:
            return f"{self.bytes / 1e6:,.1f} MB at {self.bandwidth / GIGA:.1f} GB/s"
        return f"{self.flops / GIGA:,.4g} GFLOP at {self.peak / GIGA:,.0f} GFLOP/s"


class Speeds(NamedTuple):
    """How fast a device is: bytes a second of a copy, operations a second of a matrix product."""

    bandwidth: float
    peak: float


_speeds: dict[tuple[str, int], Speeds] = {}  # by device and number of threads


def speeds(backend: Backend, threads: int) -> Speeds:
    """Measure how fast a device is, with its own kernels, once a process: it takes about 0.3 s."""
    key = backend.device, threads
    if key not in _speeds:
        source = Parameter(np.ones(COPIED, np.float32))
        matrix = Parameter(np.ones((MATRIX, MATRIX), np.float32))
        copied, product = -source, matrix @ matrix
        bandwidth = 2 * source.spec.nbytes / _seconds(backend, copied)
        _speeds[key] = Speeds(bandwidth, operations(product) / _seconds(backend, product))
    return _speeds[key]


def _seconds(backend: Backend, result: Node) -> float:
    """Return the time of the fastest of some runs."""
    program = plan(lower(Graph((), (result,)), 1, (), backend, lambda node, strides: None))
    executor = backend.bind(program)
    runs = [executor.profile(())[1] for _ in range(RUNS)]
    return min(sum(timing.seconds for timing in run) for run in runs)

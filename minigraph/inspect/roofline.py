"""The roofline: an estimate of a step's time from its bytes, operations and the device's speed.

S. Williams, A. Waterman, D. Patterson (2009), Roofline: an insightful visual performance model,
https://doi.org/10.1145/1498765.1498785.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from minigraph.compiler.pipeline import CompileContext
from minigraph.devices.problem import operations, product_of
from minigraph.graph import Graph, Node, Parameter
from minigraph.options import num_threads
from minigraph.platform.records import Record
from minigraph.program import Backend, Program
from minigraph.program.lower import lower
from minigraph.program.memory import plan

GIGA = 1e9
RUNS = 5


class Speeds(NamedTuple):
    """The speed of a device: bytes per second of a copy, operations per second of a product."""

    bandwidth: float
    peak: float

    def estimate(self, bytes: int, flops: int) -> float:
        """Return an estimate: the time to move the bytes or to compute, whichever is longer."""
        return max(bytes / self.bandwidth, flops / self.peak)


class Cost(Record, frozen=True):
    """The cost of a group of kernels.

    name      of the group: a layer, an op, or an op and its kernel
    kernels   number of kernels
    seconds   in the last profile; None without one
    bytes     minimum that they read and write
    flops     of convolutions and products, and one for each element of other results
    share     of the time of the whole profile
    roofline  predicted time at the device's full speed / time; above 1 if data stay in caches or
              an algorithm needs fewer operations; None if the speed is unknown
    """

    name: str
    kernels: int
    seconds: float | None
    bytes: int
    flops: int
    share: float | None = None
    roofline: float | None = None


def costs(
    kernels: Iterable[tuple[str, Any, float | None]], speeds: Speeds | None = None
) -> list[Cost]:
    """Return the cost of kernels by name, the slowest first.

    kernels  names, records with bytes and flops, and seconds
    """
    groups: dict[str, list[tuple[Any, float | None]]] = {}
    for name, kernel, seconds in kernels:
        groups.setdefault(name, []).append((kernel, seconds))
    total = sum(t or 0.0 for group in groups.values() for _, t in group) or 1.0
    results = []
    for name, group in groups.items():
        members = [kernel for kernel, _ in group]
        times = [t for _, t in group if t is not None]
        seconds = sum(times) if times else None
        roofline = None
        if speeds and seconds:
            roofline = sum(speeds.estimate(k.bytes, k.flops) for k in members) / seconds
        share = None if seconds is None else seconds / total
        work = sum(k.bytes for k in members), sum(k.flops for k in members)
        results.append(Cost(name, len(members), seconds, *work, share, roofline))
    return sorted(results, key=lambda cost: (-(cost.seconds or 0.0), -cost.flops))


_speeds: dict[tuple[Any, ...], Speeds] = {}  # by device, threads, dtype and precision


def speeds(context: CompileContext, program: Program) -> Speeds:
    """Return the speed of a device, measured with its kernels once per process in about 0.3 s.

    The matrix product is of the narrowest dtype in which the program multiplies, which has the
    highest peak.
    """
    backend, options = context.backend, context.options
    dtypes = {s.node.dtype for s in program.all_steps() if product_of(s.node) is not None}
    dtype = min(dtypes, key=lambda dtype: dtype.itemsize, default=np.dtype(np.float32))
    key = backend.device, num_threads(options["num_threads"]), dtype, options["precision"]
    if key not in _speeds:
        elements, rows = backend.saturation
        source = Parameter(np.ones(elements, np.float32))
        matrix = Parameter(np.ones((rows, rows), dtype))
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

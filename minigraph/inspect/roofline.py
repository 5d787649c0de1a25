"""The roofline, an estimate of a step's time: what it moves and computes at the device's speed.

S. Williams, A. Waterman, D. Patterson (2009), Roofline: an insightful visual performance model,
https://doi.org/10.1145/1498765.1498785.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from minigraph.compiler.context import CompileContext
from minigraph.devices.problem import operations, product_of
from minigraph.graph import Graph, Node, Parameter
from minigraph.options import num_threads
from minigraph.program import Backend, Program
from minigraph.program.lower import lower
from minigraph.program.memory import plan

GIGA = 1e9
RUNS = 5


class Speeds(NamedTuple):
    """How fast a device is: bytes a second of a copy, operations a second of a matrix product."""

    bandwidth: float
    peak: float

    def estimate(self, bytes: int, flops: int) -> float:
        """Return an estimate: the time to move the bytes or to compute, whichever is longer."""
        return max(bytes / self.bandwidth, flops / self.peak)


_speeds: dict[tuple[Any, ...], Speeds] = {}  # by all that they depend on


def speeds(context: CompileContext, program: Program) -> Speeds:
    """Measure how fast a device is, with its own kernels, once a process: it takes about 0.3 s.

    The matrix product is of the narrowest dtype in which the program multiplies: no other product
    of its has a higher peak.
    """
    backend, options = context.backend, context.options
    dtypes = {s.node.dtype for s in program.all_steps() if product_of(s.node) is not None}
    dtype = min(dtypes, key=lambda dtype: dtype.itemsize, default=np.dtype(np.float32))
    key = backend.device, num_threads(options["num_threads"]), dtype, options["precision"]
    if key not in _speeds:
        elements, rows = backend.saturating
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

"""A workbench in memory that is lent to it, which has its pages already."""

from __future__ import annotations

import math
from collections.abc import Iterable

from minigraph.autotune.candidate import Run, Runner, Workbench
from minigraph.graph import Array, Spec

ALIGNMENT = 64  # bytes


class LentBench:
    """A workbench whose arrays lie in memory that is lent to it, as far as they fit."""

    def __init__(self, bench: Workbench, memory: Array) -> None:
        self.chunk = bench.chunk
        self.current = bench.current
        self.put = bench.put
        self.seconds = bench.seconds
        self.epoch = 0
        self.bench = bench
        self.lend(memory)

    def lend(self, memory: Array) -> None:
        """Take memory anew, after somebody else has used it."""
        self._free = memory
        self.epoch += 1

    def empty(self, nbytes: int) -> Array:
        taken = math.ceil(nbytes / ALIGNMENT) * ALIGNMENT
        if taken > self._free.nbytes:
            return self.bench.empty(nbytes)
        array, self._free = self._free[:nbytes], self._free[taken:]
        return array

    def stored(self, array: Array) -> Array:
        spec = Spec(array.shape, array.dtype)
        kept = self.empty(spec.nbytes).view(spec.dtype).reshape(spec.shape)
        kept[...] = array
        return kept

    def compile(self, kernels: Iterable[Runner]) -> None:
        self.bench.compile(kernels)

    def runner(self, kernel: Runner) -> Run:
        return self.bench.runner(kernel)

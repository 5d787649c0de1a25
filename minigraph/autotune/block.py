"""Arrays between guards, which show who writes next to them."""

from __future__ import annotations

import math

import numpy as np

from minigraph.autotune.candidate import Workbench
from minigraph.graph import Array, DType

GUARD = 4096  # bytes around each array that nobody may write to
FILL = 0xFF  # in guards and, before a check, in outputs and scratch: a NaN in every float type


class Block:
    """An array in memory of its own, between guards, once it is cleared or written."""

    def __init__(self, bench: Workbench, shape: tuple[int, ...], dtype: DType) -> None:
        nbytes = math.prod(shape) * dtype.itemsize
        # Whole words, for the checksum.
        self.bytes = bench.empty(GUARD + -(-nbytes // 8) * 8 + GUARD)
        self.array = self.bytes[GUARD : GUARD + nbytes].view(dtype).reshape(shape)

    def clear(self, nbytes: int) -> None:
        """Make NaN of the first `nbytes` of the array, and a guard of what is next to them."""
        self.bytes[: GUARD + nbytes + GUARD].fill(FILL)

    def intact(self, nbytes: int) -> bool:
        """Return whether nobody has written next to the first `nbytes` of the array."""
        before, after = self.bytes[:GUARD], self.bytes[GUARD + nbytes :][:GUARD]
        return bool((before == FILL).all() and (after == FILL).all())

    def write(self, values: Array) -> None:
        """Set the array and, around it, the guards."""
        self.bytes[:GUARD].fill(FILL)
        self.bytes[GUARD + self.array.nbytes :].fill(FILL)
        self.array[...] = values
        self._sum = self._checksum()

    def changed(self) -> bool:
        """Return whether somebody has written to the array or its guards since `write`."""
        return self._checksum() != self._sum

    def _checksum(self) -> int:
        """Return a sum of all bytes: it shows any write that changes one word."""
        return int(self.bytes.view(np.uint64).sum())

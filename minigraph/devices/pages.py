"""Pages of new memory, which the system gives when they are touched for the first time.

On a virtual machine, whose own memory grows then, that may take a second a GB.
"""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from minigraph.graph import Array, Spec, aligned_empty
from minigraph.program import ReservedMemory

BYTE = np.dtype(np.uint8)
MOST = 4  # times as large as foreseen: what exceeds that is not touched, so it takes nothing
PART = 16 << 20  # bytes that are touched without a look at whether to go on


class HostMemory(ReservedMemory):
    """Memory of the host, from which one arena may be cut; what is too small goes.

    Another thread touches what is foreseen, and once the arena is known, the rest of that.  Nobody
    else writes there meanwhile.  It does not ask the system to populate the memory, which would
    hold up all who map some, such as those who load a library.
    """

    def __init__(self, nbytes: int) -> None:
        self.arrays: list[Array] = []
        self._touched = 0  # bytes from the beginning, or soon
        self._thread = ThreadPoolExecutor(1, "minigraph touches")
        with suppress(MemoryError):
            self.arrays.append(aligned_empty(Spec((MOST * nbytes,), BYTE)))
            self._touch(nbytes)

    def arenas(self, nbytes: int) -> list[Array]:
        self.arrays = [array for array in self.arrays if array.nbytes >= nbytes]
        self._touch(nbytes)
        return [array[:nbytes] for array in self.arrays]

    def drop(self) -> None:
        self.arrays.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        self.drop()
        self._thread.shutdown()

    def _touch(self, nbytes: int) -> None:
        """Have so many bytes touched, but for a rest that is no whole part."""
        for array in self.arrays:
            while self._touched + PART <= nbytes:
                part = array[self._touched : self._touched + PART]
                self._touched += PART
                with suppress(RuntimeError):  # the system starts no more threads
                    self._thread.submit(_touch, part)


def _touch(memory: Array) -> None:
    memory[:: mmap.PAGESIZE] = 0

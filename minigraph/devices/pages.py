"""Pages of new memory, which the system gives when they are touched for the first time.

On a virtual machine, whose own memory grows then, that may take a second a GB.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from minigraph.graph import Array, Spec, aligned_empty
from minigraph.program import Ahead

BYTE = np.dtype(np.uint8)
NONE = np.empty(0, BYTE)
MOST = 4  # times as large as foreseen: what exceeds that is not touched, so it takes nothing
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, of Linux 5.14: keeps what the memory holds
PART = 16 << 20  # bytes that are populated without a look at whether to go on


@contextmanager
def populating(memory: Array) -> Iterator[None]:
    """Have pages given to contiguous memory in another thread, until what is done inside ends."""
    if memory.nbytes < PART:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_populate, args=(memory, ended), name="minigraph populates")
    with suppress(RuntimeError):  # the system starts no more threads
        thread.start()
    del memory  # which may go before this ends
    try:
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()


class HostMemory(Ahead):
    """Memory of the host, from which one arena may be cut; what is too small goes."""

    def __init__(self, nbytes: int) -> None:
        self.arrays: list[Array] = []
        with suppress(MemoryError):
            self.arrays.append(aligned_empty(Spec((nbytes,), BYTE)))

    def arenas(self, nbytes: int) -> list[Array]:
        self.arrays = [array for array in self.arrays if array.nbytes >= nbytes]
        return [array[:nbytes] for array in self.arrays]

    def drop(self) -> None:
        self.arrays.clear()


@contextmanager
def ahead(nbytes: int) -> Iterator[HostMemory]:
    """Give memory of a size that is not known yet: MOST times as many bytes as this at most.

    So many of them are populated in another thread meanwhile.
    """
    memory = HostMemory(MOST * nbytes)
    try:
        with populating(memory.arrays[0][:nbytes] if memory.arrays else NONE):
            yield memory
    finally:
        memory.drop()


def _populate(memory: Array, ended: threading.Event) -> None:
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    first = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (memory.ctypes.data + memory.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    for at in range(first, last, PART):
        # Where the system cannot, pages come when they are touched.
        if ended.is_set() or advise(at, min(PART, last - at), POPULATE_WRITE):
            return

"""Pages of new memory, which the system gives when they are touched for the first time.

On a virtual machine, whose own memory grows then, that may take a second a GB.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from minigraph.graph import Array, Spec, aligned_empty

BYTE = np.dtype(np.uint8)
NONE = np.empty(0, BYTE)
MOST = 4  # of memory that is made ready ahead, its bytes in parts of those that are foreseen
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
    try:
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()


@contextmanager
def ahead(nbytes: int) -> Iterator[Callable[[int], list[Array]]]:
    """Give what returns memory whose size is not known yet: a list of one array, or of none.

    So many bytes are populated in another thread meanwhile; it has MOST times as many at most.
    """
    memory: list[Array] = []
    with suppress(MemoryError):
        memory.append(aligned_empty(Spec((MOST * nbytes,), BYTE)))
    try:
        with populating(memory[0][:nbytes] if memory else NONE):
            yield lambda wanted: [array[:wanted] for array in memory if array.nbytes >= wanted]
    finally:
        memory.clear()


def _populate(memory: Array, ended: threading.Event) -> None:
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    first = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (memory.ctypes.data + memory.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    for at in range(first, last, PART):
        # Where the system cannot, pages come when they are touched.
        if ended.is_set() or advise(at, min(PART, last - at), POPULATE_WRITE):
            return

"""Load machine code from memory, without a path in a file system."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import itertools
import mmap
import os
from collections.abc import Iterator

from minigraph.errors import warn_once

NOEXEC_SEAL = 8  # not executable as a program, which some systems demand (Linux 6.3 and later)
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_numbers = itertools.count(1)


def load(code: bytes) -> ctypes.CDLL:
    """Load the bytes of a shared library; raise OSError if that fails.

    The library is never unloaded, as functions point into it.
    """
    with _in_memory(code) as path:
        return ctypes.CDLL(path)


@functools.cache
def can_load_code() -> bool:
    """Return whether the system lets compiled code run; warn if not."""
    try:
        with _in_memory(bytes(mmap.PAGESIZE)) as path, open(path, "rb") as file:
            rights = mmap.PROT_READ | mmap.PROT_EXEC  # as the loader maps code
            mmap.mmap(file.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE, rights).close()
    except (OSError, AttributeError) as error:  # no memfd, no /proc, or a security rule
        warn_once(
            f"no machine code can be loaded from memory ({error}), so kernels run in NumPy, "
            "several times slower"
        )
        return False
    return True


@contextlib.contextmanager
def _in_memory(code: bytes) -> Iterator[str]:
    """Yield a path to a sealed copy of bytes, which no process can change."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        handle = os.memfd_create("minigraph", flags | NOEXEC_SEAL)
    except OSError:  # an older kernel
        handle = os.memfd_create("minigraph", flags)
    with open(handle, "wb") as file:
        file.write(code)
        file.flush()
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, SEALS)
        # The loader assumes that a path it has loaded is still the same library, but file numbers
        # are reused.  So each path is new: slashes and dots, which do not change the meaning of a
        # path, count in binary.
        number = "".join("/." if bit == "1" else "/" for bit in f"{next(_numbers):b}")
        yield f"/proc/self/fd{number}/{handle}"

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

NOEXEC_SEAL = 8  # no program, which some systems demand; a library may be mapped.  Since Linux 6.3
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
        with _in_memory(bytes(mmap.PAGESIZE)) as path:
            _map(path)
    except (OSError, AttributeError) as error:  # no such files, no /proc, or a rule against it
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
        # The loader takes a known path for the library that it loaded from there, even if another
        # file has the same number by now.  So each path is new: slashes and dots, which do not
        # change its meaning, count in binary.
        number = "".join("/." if bit == "1" else "/" for bit in f"{next(_numbers):b}")
        yield f"/proc/self/fd{number}/{handle}"


def _map(path: str) -> None:
    """Map a file as the loader maps code; raise OSError if the system forbids that."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        rights = mmap.PROT_READ | mmap.PROT_EXEC
        mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, rights).close()

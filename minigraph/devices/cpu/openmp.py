"""GNU's OpenMP library, whose threads oneDNN and generated kernels share."""

from __future__ import annotations

import ctypes
import functools
import os

SETTING = "GOMP_SPINCOUNT"
# How often an idle thread looks for work before it sleeps, instead of the library's 300,000 times
# (libgomp's manual): where other programs want the processors too, a thread that waits in a loop
# keeps the one it waits for from running.  Kernels follow one another within microseconds.
SPINS = 3000


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library; OSError if it cannot be loaded.

    Whoever loads it first decides, and a user who has set its variables is obeyed.
    """
    said = SETTING in os.environ or "OMP_WAIT_POLICY" in os.environ
    if not said:
        os.environ[SETTING] = str(SPINS)  # which it reads once, when it is loaded
    try:
        return ctypes.CDLL("libgomp.so.1")
    finally:
        if not said:
            os.environ.pop(SETTING, None)  # another thread may have been here too

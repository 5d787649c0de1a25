"""The CUDA text that stands before all kernels of a program.

NVRTC has no headers of the C library, but its mathematical functions and `memcpy`.  Functions need
no `__device__`: the compiler is told that all are, so that the ops' C functions serve as they are.
"""

from __future__ import annotations

from pathlib import Path

PRELUDE = Path(__file__).with_suffix(".cu").read_text()

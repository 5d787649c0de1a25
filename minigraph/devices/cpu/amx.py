"""AMX's tile instructions, which multiply bfloat16 numbers, for products of float32.

A float32 number is split into three bfloat16 parts with eight bits each.  Two numbers have nine
products of parts; the sum of the six largest, in float32, has an error below float32's rounding
error (XLA: BF16_BF16_F32_X6).  Two parts and three products keep sixteen bits (X3), which
`precision="bf16x3"` allows.  G. Henry, P. Tang and A. Heinecke, "Leveraging the bfloat16 artificial
intelligence datatype for higher-precision computations" (2019).

AMX flushes denormal parts to 0, so numbers below 2**-108 lose their lower parts.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from pathlib import Path

from minigraph.cache.machine import features
from minigraph.devices.cpu import compiler
from minigraph.graph import BFLOAT16
from minigraph.jit.macros import with_macros
from minigraph.jit.small_float import conversions
from minigraph.jit.source import KernelSource

PRECISION = "bf16x3"  # the option's value that allows two parts
PARTS = {2: "bf16x3", 3: "bf16x6"}  # names of algorithms, by the parts of a number
TEXT = Path(__file__).with_suffix(".c").read_text()
LINES, DEPTH = 16, 32  # rows of a tile, and sums
BLOCK = 2 * LINES  # rows of a block
TILE = 1024  # bytes
PANEL = 32  # largest number of steps of DEPTH sums that are accumulated in registers
# Arguments of Linux's `arch_prctl` that request the tiles' part of the processor state.
ARCH_PRCTL, REQUEST, TILE_DATA = 158, 0x1023, 18


@functools.cache
def why_not() -> str:
    """Return why this process cannot use AMX's tiles; "" if it can."""
    if "amx_bf16" not in features():
        return "the processor has no AMX"
    if not compiler.compiler():
        return compiler.NO_COMPILER
    libc = ctypes.CDLL(None)
    if platform.system() != "Linux" or libc.syscall(ARCH_PRCTL, REQUEST, TILE_DATA):
        return "the operating system does not grant AMX's tiles"
    return ""


def source(parts: int, text: str, **macros: object) -> KernelSource:
    """Return the source of a text that follows amx.c, for numbers in `parts` parts."""
    *_, support = conversions(BFLOAT16)
    sizes = {"LINES": LINES, "DEPTH": DEPTH, "BLOCK": BLOCK, "TILE_BYTES": TILE, "PANEL": PANEL}
    bits = {"SIGN": "0x80000000u", "LARGE": "0x7f7f8000u"}
    return KernelSource(with_macros(TEXT + text, PARTS=parts, **sizes, **bits, **macros), support)

"""Many integers in a smaller type, checked while they are written: NumPy would read them again."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from minigraph.devices.cpu import compiler
from minigraph.devices.cpu.kernel import address_of
from minigraph.graph import INTEGERS, Array, DType, cast
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.jit.source import KernelSource

TEXT = Path(__file__).with_suffix(".c").read_text()
SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
MANY = 1 << 14


def narrow(array: Array, dtype: DType, on_disk: bool) -> Array:
    """Return an array of the host in another dtype, as `cast` does.

    on_disk  whether kernels may be looked for, and kept, on disk
    """
    plain = array.size >= MANY and array.flags.c_contiguous and array.flags.aligned
    if plain and (function := _function(array.dtype, dtype, on_disk)):
        made = np.empty(array.shape, dtype)
        if function(address_of(array), address_of(made), array.size):
            return made
    return cast(array, dtype)  # which names what does not fit


@functools.cache
def _function(source: DType, target: DType, on_disk: bool) -> Callable[[int, int, int], int] | None:
    """Return the compiled function; None without a compiler, and where it is not needed."""
    if not {source, target} <= {*INTEGERS} or np.can_cast(source, target):
        return None
    if not compiler.compiler():
        return None
    macros = {"S": c_type(source), "T": c_type(target), "UNSIGNED": int(source.kind == "u")}
    text = KernelSource(with_macros(TEXT, **macros))
    address = compiler.KERNELS.functions([text], on_disk)[text.name]
    return SIGNATURE(address) if address else None

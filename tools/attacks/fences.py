"""Memory with a fence: a kernel that reads or writes beside an array ends the process.

Pages that nobody may touch lie on both sides.  Under AddressSanitizer the bytes between the array
and those pages may not be touched either, by code that was compiled with it.
"""

import ctypes
import functools
import mmap
import weakref

import numpy as np

from minigraph.debug import fault_localization
from minigraph.graph import Spec
from minigraph.ops.random import SEED, STEP

PAGE = mmap.PAGESIZE
NONE = 0  # PROT_NONE
UNSET = 0xFF  # a NaN in every float type

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
SANITIZED = hasattr(_libc, "__asan_poison_memory_region")
if SANITIZED:
    for name in ("__asan_poison_memory_region", "__asan_unpoison_memory_region"):
        getattr(_libc, name).argtypes = ctypes.c_void_p, ctypes.c_size_t


def empty(spec, alignment=64, at_end=True):
    """Return an unset array beside a page that nobody may touch: the one behind it, or before it.

    alignment  bytes, at a multiple of which it begins: between its end and the page there may be
               fewer than these
    """
    room = -(-max(spec.nbytes, 1) // PAGE) * PAGE
    block = mmap.mmap(-1, room + 2 * PAGE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(block))
    for fence in (begin, begin + PAGE + room):
        if _libc.mprotect(fence, PAGE, NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = PAGE + ((room - spec.nbytes) // alignment * alignment if at_end else 0)
    array = np.frombuffer(block, np.uint8, spec.nbytes, offset)
    array[...] = UNSET
    if SANITIZED:
        _libc.__asan_poison_memory_region(begin, offset)
        end = offset + spec.nbytes
        _libc.__asan_poison_memory_region(begin + end, room + 2 * PAGE - end)
        weakref.finalize(block, _libc.__asan_unpoison_memory_region, begin, room + 2 * PAGE)
    return array.view(spec.dtype).reshape(spec.shape)


def copied(array, alignment=None, at_end=True):
    """Return an array with a fence; as close to it as the array's elements allow."""
    made = empty(Spec(array.shape, array.dtype), alignment or array.dtype.itemsize, at_end)
    made[...] = array
    return made


def call(function, arrays, at_end=True):
    """Call a function with arrays in fences, and check each of its steps alone.

    Returns what the function returned.  A step alone runs on memory of its own, in fences, and is
    compared with NumPy.
    """
    given = {
        **dict(zip(function._inputs, arrays, strict=True)),
        SEED: function.seed,
        STEP: np.array(function.calls, np.uint64),
    }
    allocate = functools.partial(empty, at_end=at_end)
    program, backend = function._program, function._backend
    checked = fault_localization.check_steps(program, backend, given, allocate=allocate)
    if isinstance(checked, tuple):
        step, difference = checked
        raise AssertionError(
            f"{step.kernel.name} for {step.node!r} {step.node.source} differs from NumPy\n"
            + difference.statistics("NumPy", "kernel")
        )
    return function(*(copied(x, at_end=at_end) for x in arrays))

"""Memory with fences: a kernel that reads or writes beside an array ends the process.

The pages on both sides of the array are protected.  Under AddressSanitizer, code that was compiled
with it may not touch the bytes between the array and those pages either.
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
    """Return an unset array beside a protected page: the one after it, or the one before it.

    alignment  bytes of which its address is a multiple: fewer than these may be between its end
               and the page
    """
    size = -(-max(spec.nbytes, 1) // PAGE) * PAGE
    block = mmap.mmap(-1, size + 2 * PAGE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(block))
    for fence in (begin, begin + PAGE + size):
        if _libc.mprotect(fence, PAGE, NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = PAGE + ((size - spec.nbytes) // alignment * alignment if at_end else 0)
    array = np.frombuffer(block, np.uint8, spec.nbytes, offset)
    array[...] = UNSET
    if SANITIZED:
        _libc.__asan_poison_memory_region(begin, offset)
        end = offset + spec.nbytes
        _libc.__asan_poison_memory_region(begin + end, size + 2 * PAGE - end)
        weakref.finalize(block, _libc.__asan_unpoison_memory_region, begin, size + 2 * PAGE)
    return array.view(spec.dtype).reshape(spec.shape)


def copied(array, alignment=None, at_end=True):
    """Return a copy of an array beside a fence, aligned to its elements by default."""
    copy = empty(Spec(array.shape, array.dtype), alignment or array.dtype.itemsize, at_end)
    copy[...] = array
    return copy


def call(function, arrays, at_end=True):
    """Call a function with arrays in fences, and check each of its steps alone.

    Returns the results of the function.  Each step runs alone on separate memory in fences, and is
    compared with NumPy.
    """
    values = {
        **dict(zip(function._inputs, arrays, strict=True)),
        SEED: function.seed,
        STEP: np.array(function.calls, np.uint64),
    }
    allocate = functools.partial(empty, at_end=at_end)
    program, backend = function._program, function._backend
    checked = fault_localization.check_steps(program, backend, values, allocate=allocate)
    if isinstance(checked, tuple):
        step, difference = checked
        raise AssertionError(
            f"{step.kernel.name} for {step.node!r} {step.node.source} differs from NumPy\n"
            + difference.statistics("NumPy", "kernel")
        )
    return function(*(copied(x, at_end=at_end) for x in arrays))

"""oneDNN through its C interface (version 3): memory layouts and primitives.

The module knows no op; `primitives.py` maps ops to primitives.  The package `onednn-cpu-gomp`
provides the library for x86-64.  The first compilation of a CPU function loads it.  Without the
library, `library()` returns None, and minigraph's own kernels compute float32 products and most
convolutions.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import platform
import site
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minigraph.devices.cpu import openmp
from minigraph.errors import GraphError, warn_once
from minigraph.graph import BFLOAT16, DType, Shape, Spec

# The names and values of the C header dnnl_types.h, version 3.2.
FORWARD_TRAINING = 64
CONVOLUTION_DIRECT = 1
POOLING_AVG_INCLUDE_PADDING, POOLING_AVG_EXCLUDE_PADDING = 0x2FF, 0x3FF
SRC, DST, WEIGHTS, BIAS = 1, 17, 33, 41
SCRATCHPAD = 80
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS = 129, 145, 161
_QUERY_INFO = 8
QUERIES = {
    SRC: 129,
    DIFF_SRC: 130,
    WEIGHTS: 131,
    DIFF_WEIGHTS: 132,
    DST: 133,
    DIFF_DST: 134,
    SCRATCHPAD: 136,
}
_FORMAT_ANY = 1
_FORMAT_BLOCKED = {8: 102, 16: 78}  # aBcd8b and aBcd16b
_DTYPES = {"bfloat16": 2, "float32": 3, "int32": 4, "int8": 5, "uint8": 6}
MAX_NDIM = 12
REORDER = "dnnl_reorder_primitive_desc_create"
# dnnl_cpu_isa_avx, avx2, avx512_core and avx512_core_bf16; each includes the bits of the others.
AVX, AVX2, AVX512, AVX512_BF16 = 0x3, 0x7, 0x27, 0xE7
F32 = np.dtype(np.float32)


class ExecArg(ctypes.Structure):
    _fields_ = (("arg", c_int), ("memory", c_void_p))


class Unimplemented(GraphError):
    """oneDNN has no implementation of an operation."""


@dataclass
class Library:
    """The loaded library with its engine and stream, one of each for the process."""

    dnnl: ctypes.CDLL
    gomp: ctypes.CDLL
    engine: c_void_p
    stream: c_void_p

    @property
    def version(self) -> str:
        self.dnnl.dnnl_version.restype = POINTER(c_int)
        return ".".join(str(self.dnnl.dnnl_version()[i]) for i in range(3))

    @property
    def instructions(self) -> int:
        """The instruction sets that the library uses, as bits; ONEDNN_MAX_CPU_ISA limits them."""
        return int(self.dnnl.dnnl_get_effective_cpu_isa())

    def supports(self, instructions: int) -> bool:
        return self.instructions & instructions == instructions

    def call(self, name: str, *args: Any) -> None:
        """Call a function; raise Unimplemented or, for another failure, GraphError."""
        status = getattr(self.dnnl, name)(*args)
        if status == 3:
            raise Unimplemented(f"oneDNN does not implement {name}")
        if status:
            raise GraphError(f"oneDNN's {name} failed with status {status}")


@functools.cache
def library() -> Library | None:
    """Return the library; warn once and return None if it cannot be loaded."""
    paths = [Path(root, "lib", "libdnnl.so.3") for root in (sys.prefix, site.getuserbase())]
    # In an unreadable home folder, os.path.exists returns False, while Path.exists raises.
    installed = [str(path) for path in paths if os.path.exists(path)]
    try:
        gomp = openmp.library()
        dnnl = ctypes.CDLL(installed[0] if installed else "libdnnl.so.3")
    except OSError as error:
        if platform.machine() == "x86_64":
            warn_once(
                f"oneDNN is missing ({error}); slower kernels, some of them NumPy's, take its "
                "place: pip install onednn-cpu-gomp, and install the system's libgomp1"
            )
        return None
    lib = Library(dnnl, gomp, c_void_p(), c_void_p())
    lib.call("dnnl_engine_create", byref(lib.engine), 1, c_size_t(0))
    lib.call("dnnl_stream_create", byref(lib.stream), lib.engine, 1)
    lib.call("dnnl_set_primitive_cache_capacity", 0)  # functions own their primitives
    return lib


def required_library() -> Library:
    lib = library()
    assert lib is not None, "callers have found oneDNN"
    return lib


def block() -> int:
    """Return the floats of a vector: the channels of a block in most blocked layouts, 8 or 16."""
    lib = library()
    return 16 if lib and lib.supports(AVX512) else 8


def blocks() -> tuple[int, ...]:
    """Return the channels of a block in each blocked layout of this processor, the most first."""
    return (16, 8) if block() == 16 else (8,)


def dtypes() -> frozenset[DType]:
    """Return the dtypes for which oneDNN uses native instructions here; empty without oneDNN."""
    lib = library()
    if lib is None:
        return frozenset()
    return frozenset((F32, BFLOAT16) if lib.supports(AVX512_BF16) else (F32,))


def dims(values: Iterable[int]) -> Any:
    """Return sizes, one for each axis, as the library expects them."""
    return (c_int64 * MAX_NDIM)(*values)


class MemoryDescriptor:
    """A memory descriptor: sizes, data type and layout."""

    def __init__(self, handle: c_void_p) -> None:
        self.handle = handle
        weakref.finalize(
            self, required_library().dnnl.dnnl_memory_desc_destroy, handle
        ).atexit = False

    @property
    def nbytes(self) -> int:
        size = required_library().dnnl.dnnl_memory_desc_get_size
        size.restype = c_size_t
        return int(size(self.handle))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemoryDescriptor):
            return False
        equal = required_library().dnnl.dnnl_memory_desc_equal
        return bool(equal(self.handle, other.handle))

    __hash__ = None  # type: ignore[assignment]


def strided(shape: Shape, dtype: DType, strides: Sequence[int] | None = None) -> MemoryDescriptor:
    """Return the layout with these strides in elements; C-contiguous by default."""
    if strides is None:
        strides = [step // dtype.itemsize for step in Spec(shape, dtype).strides]
    return _described("strides", shape, dtype, dims(strides))


def any_layout(shape: Shape, dtype: DType) -> MemoryDescriptor:
    """Return the layout "any", which lets the primitive choose."""
    return _described("tag", shape, dtype, _FORMAT_ANY)


def blocked(shape: Shape, dtype: DType, lanes: int) -> MemoryDescriptor:
    """Return the layout of images [n, c, h, w] in blocks of 8 or 16 channels.

    Raises Unimplemented for other numbers of lanes.
    """
    if lanes not in _FORMAT_BLOCKED:
        raise Unimplemented(f"oneDNN has no layout of blocks of {lanes} channels")
    return _described("tag", shape, dtype, _FORMAT_BLOCKED[lanes])


def _described(by: str, shape: Shape, dtype: DType, layout: Any) -> MemoryDescriptor:
    handle, create = c_void_p(), f"dnnl_memory_desc_create_with_{by}"
    required_library().call(
        create, byref(handle), len(shape), dims(shape), _DTYPES[dtype.name], layout
    )
    return MemoryDescriptor(handle)


class Descriptor:
    """A primitive descriptor: one implementation of an operation.

    create  name of the C function that creates it
    args    arguments of the C function between the engine and the attributes; for a reorder they
            include its engines
    """

    def __init__(self, create: str, *args: Any) -> None:
        lib = required_library()
        engine = () if create == REORDER else (lib.engine,)
        self.args = args  # keep them alive: the library reads a forward descriptor (hint) later
        attributes = c_void_p()
        lib.call("dnnl_primitive_attr_create", byref(attributes))
        lib.call("dnnl_primitive_attr_set_scratchpad_mode", attributes, 1)  # the caller's memory
        self.handle = c_void_p()
        try:
            values = [a.handle if isinstance(a, MemoryDescriptor | Descriptor) else a for a in args]
            lib.call(create, byref(self.handle), *engine, *values, attributes)
        finally:
            lib.dnnl.dnnl_primitive_attr_destroy(attributes)
        destroy = lib.dnnl.dnnl_primitive_desc_destroy
        weakref.finalize(self, destroy, self.handle).atexit = False

    @property
    def name(self) -> str:
        """The implementation's name, such as "jit:avx2"."""
        text = c_char_p()
        required_library().call(
            "dnnl_primitive_desc_query", self.handle, _QUERY_INFO, 0, byref(text)
        )
        return (text.value or b"").decode()

    def advance(self) -> bool:
        """Advance to the library's next implementation; return whether there is one."""
        return not required_library().dnnl.dnnl_primitive_desc_next_impl(self.handle)

    def layout(self, arg: int) -> MemoryDescriptor:
        """Return the layout that this implementation needs for an argument."""
        query = required_library().dnnl.dnnl_primitive_desc_query_md
        query.restype = c_void_p
        borrowed = c_void_p(query(self.handle, QUERIES[arg], 0))
        handle = c_void_p()
        required_library().call("dnnl_memory_desc_clone", byref(handle), borrowed)
        return MemoryDescriptor(handle)


def implementations(create: str, *args: Any) -> Iterator[Descriptor]:
    """Yield the implementations of an operation in the library's order.

    They exclude reference implementations, which may take a thousand times as long.
    """
    for skipped in itertools.count():
        descriptor = Descriptor(create, *args)
        if not all(descriptor.advance() for _ in range(skipped)):
            return
        if not descriptor.name.startswith("ref"):
            yield descriptor


@contextmanager
def omp_threads(count: int) -> Iterator[None]:
    """Set OpenMP's number of threads, for which oneDNN creates primitives, within the block."""
    gomp = required_library().gomp
    openmp.start(count)
    previous = gomp.omp_get_max_threads()
    gomp.omp_set_num_threads(count)
    try:
        yield
    finally:
        gomp.omp_set_num_threads(previous)

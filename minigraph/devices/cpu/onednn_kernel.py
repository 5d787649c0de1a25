"""Kernels that execute oneDNN's primitives."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Collection, Sequence
from ctypes import byref, c_int64, c_uint64, c_void_p
from types import MappingProxyType
from typing import Any, NamedTuple

from minigraph.devices.cpu.kernel import CpuKernel, Linker, NativeCall, Operands, Place, Preparation
from minigraph.devices.cpu.onednn import (
    DST,
    QUERIES,
    REORDER,
    SCRATCHPAD,
    SRC,
    Descriptor,
    ExecArg,
    Library,
    MemoryDescriptor,
    omp_threads,
    required_library,
)
from minigraph.jit.source import KernelSource
from minigraph.program import round_up

# Sets the memory of each argument, then executes the primitive.
EXECUTE = KernelSource("""
typedef int (*mg_set_handle)(void *, void *);
typedef int (*mg_execute)(void *, void *, int, void *);
int NAME(const int64_t *a, char **slots) {
  const mg_set_handle set_handle = (mg_set_handle)a[0];
  omp_set_num_threads(a[6]);
  for (int64_t i = 0; i < a[4]; i++)
    set_handle((void *)a[7 + 3 * i], slots[a[8 + 3 * i]] + a[9 + 3 * i]);
  return ((mg_execute)a[1])((void *)a[2], (void *)a[3], a[4], (void *)a[5]);
}
""")


HEAD = 7  # words of the argument block before the three words of each argument


def execute(block: int, slots: int) -> int:
    """Execute a primitive from Python, as EXECUTE does in C."""
    lib = required_library()
    words = (c_int64 * HEAD).from_address(block)
    _, _, primitive, stream, count, arguments, threads = words
    places = (c_int64 * (3 * count)).from_address(block + ctypes.sizeof(words))
    for memory, slot, offset in zip(places[::3], places[1::3], places[2::3], strict=True):
        base = c_uint64.from_address(slots + slot * ctypes.sizeof(c_uint64)).value
        lib.dnnl.dnnl_memory_set_data_handle(c_void_p(memory), c_void_p(base + offset))
    with omp_threads(threads):
        return int(
            lib.dnnl.dnnl_primitive_execute(
                c_void_p(primitive), c_void_p(stream), count, c_void_p(arguments)
            )
        )


# oneDNN's index of an argument, and the layout of the caller's operand.
Argument = tuple[int, MemoryDescriptor]
# oneDNN's index, the layout, the index of the place among `_places`, and an offset in bytes.
Placed = tuple[int, MemoryDescriptor, int, int]


def _places(operands: Operands) -> list[Place]:
    """Return the places of inputs (converted ones if prepared), outputs and scratch memory."""
    inputs = (operands.prepared.get(i, place) for i, place in enumerate(operands.inputs))
    return [*inputs, *operands.outputs, operands.scratch]


class Implementation(NamedTuple):
    """An implementation by oneDNN of a node with one result.

    inputs   arguments, in the order of the node's inputs
    strided  whether each input may be a view that is not contiguous; () if none may
    suffix   appended to its name
    """

    descriptor: Descriptor
    inputs: Sequence[Argument]
    output: Argument
    strided: Sequence[bool] = ()
    suffix: str = ""

    @property
    def name(self) -> str:
        return self.descriptor.name + self.suffix

    @property
    def family(self) -> tuple[str, str]:
        """The key of the implementations that differ only in their instruction sets."""
        return self.descriptor.name.partition(":")[0], self.suffix


class PrimitiveCall:
    """A primitive with its arguments, whose memory is bound when it runs."""

    def __init__(self, descriptor: Descriptor, args: Sequence[Placed]) -> None:
        lib = required_library()
        self.primitive = c_void_p()
        lib.call("dnnl_primitive_create", byref(self.primitive), descriptor.handle)
        self.places = [(place, offset) for _, _, place, offset in args]
        self.memories: list[c_void_p] = []
        self.arguments = (ExecArg * len(args))()
        for i, (arg, layout, _, _) in enumerate(args):
            memory = c_void_p()
            lib.call("dnnl_memory_create", byref(memory), layout.handle, lib.engine, None)
            self.memories.append(memory)
            self.arguments[i] = ExecArg(arg, memory)
        # Nothing is destroyed at exit, when a daemon thread may still run the primitive.
        destroyed = weakref.finalize(self, _destroy, lib, self.primitive, self.memories)
        destroyed.atexit = False

    def block(self, places: Sequence[Place], threads: int) -> list[int]:
        lib = required_library()
        words = [_address(lib.dnnl.dnnl_memory_set_data_handle)]
        words += [_address(lib.dnnl.dnnl_primitive_execute)]
        words += [self.primitive.value or 0, lib.stream.value or 0, len(self.memories)]
        words += [ctypes.addressof(self.arguments), threads]
        for memory, (place, offset) in zip(self.memories, self.places, strict=True):
            slot, begin = places[place]
            words += [memory.value or 0, slot, begin + offset]
        return words


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0


def _destroy(lib: Library, primitive: c_void_p, memories: list[c_void_p]) -> None:
    lib.dnnl.dnnl_primitive_destroy(primitive)
    for memory in memories:
        lib.dnnl.dnnl_memory_destroy(memory)


class OneDnnKernel(CpuKernel):
    """A primitive, with the reorders between the caller's layouts and its own.

    threads    number of threads for which it is created
    constants  constant inputs, which are reordered once
    """

    maker = "onednn"
    substitutes = MappingProxyType({EXECUTE: execute})
    texts = (EXECUTE,)

    def __init__(
        self, implementation: Implementation, threads: int, constants: Collection[int] = ()
    ) -> None:
        descriptor, inputs, output, self.strided, _ = implementation
        self.algorithm = implementation.name
        self.threads = threads
        self.preparations: dict[int, Preparation] = {}
        input_reorders: list[PrimitiveCall] = []
        output_reorders: list[PrimitiveCall] = []
        args: list[Placed] = []
        result, scratch = len(inputs), len(inputs) + 1
        for i, (arg, layout) in enumerate((*inputs, output)):
            inner_layout = descriptor.layout(arg) if arg in QUERIES else layout
            operand = (layout, i, 0)
            if inner_layout == layout or i in constants:
                args.append((arg, inner_layout, i, 0))
                if inner_layout != layout:
                    self._prepare(i, layout, inner_layout)
                continue
            reordered = (inner_layout, scratch, self._reserve(inner_layout.nbytes))
            args.append((arg, *reordered))
            if i < result:
                input_reorders.append(_reorder(operand, reordered))
            else:
                output_reorders.append(_reorder(reordered, operand))
        pad = descriptor.layout(SCRATCHPAD)
        if pad.nbytes:
            args.append((SCRATCHPAD, pad, scratch, self._reserve(pad.nbytes)))
        self.primitives = [*input_reorders, PrimitiveCall(descriptor, args), *output_reorders]

    def _prepare(self, i: int, layout: MemoryDescriptor, inner_layout: MemoryDescriptor) -> None:
        """Reorder input `i` once, before the first call."""
        reorder = _reorder((layout, 0, 0), (inner_layout, 1, 0))

        def calls(source: Place, target: Place, linker: Linker) -> list[NativeCall]:
            return [linker.call(EXECUTE, reorder.block([source, target], self.threads))]

        self.preparations[i] = Preparation(inner_layout.nbytes, calls)

    def _reserve(self, nbytes: int) -> int:
        """Return the offset of `nbytes` more bytes of scratch memory."""
        offset = self.scratch
        self.scratch += round_up(nbytes)
        return offset

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        places = _places(operands)
        return [linker.call(EXECUTE, p.block(places, self.threads)) for p in self.primitives]


def _reorder(
    source: tuple[MemoryDescriptor, int, int], target: tuple[MemoryDescriptor, int, int]
) -> PrimitiveCall:
    engine = required_library().engine
    descriptor = Descriptor(REORDER, source[0], engine, target[0], engine)
    return PrimitiveCall(descriptor, [(SRC, *source), (DST, *target)])

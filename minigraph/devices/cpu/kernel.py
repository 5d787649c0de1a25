"""Kernels as calls of C functions: linking them, and running one outside of a program."""

from __future__ import annotations

import ctypes
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from minigraph.devices.cpu import compiler, halide_compiler
from minigraph.devices.reference import NumpyKernel
from minigraph.graph import Array, Constant, Node, Op, Spec, aligned_empty
from minigraph.jit.halide.source import HalideSource
from minigraph.jit.source import KernelSource
from minigraph.program import Kernel, KernelFailed

T = TypeVar("T")
MIN_THREADED_ELEMENTS = 32768  # elements for which a second thread pays
MAX_CACHE_BYTES = 32 << 20


@functools.cache
def cache_bytes() -> int:
    """Return the size of the last-level cache, at most 32 MiB; 32 MiB if unknown.

    Linux on a virtual machine reports the cache of a whole socket, which other machines share.
    """
    return min(_cache_bytes(3) or MAX_CACHE_BYTES, MAX_CACHE_BYTES)


@functools.cache
def second_level_cache_bytes() -> int:
    """Return the size of a core's second-level cache; 0 if unknown."""
    return _cache_bytes(2)


def _cache_bytes(level: int) -> int:
    try:
        text = Path(f"/sys/devices/system/cpu/cpu0/cache/index{level}/size").read_text().strip()
    except OSError:
        return 0
    return int(text.rstrip("KM")) << (20 if text.endswith("M") else 10)


# Offset of the address of an array's elements in NumPy's array object, by its binary interface.
DATA_POINTER_OFFSET = object.__basicsize__


def address_of(array: Array) -> int:
    """Return the address of an array's elements, six times as fast as `array.ctypes.data`."""
    return ctypes.c_void_p.from_address(id(array) + DATA_POINTER_OFFSET).value or 0


def threads_for(elements: int, threads: int) -> int:
    """Return how many threads should share the elements of a generated or handwritten kernel."""
    return threads if elements >= MIN_THREADED_ELEMENTS else 1


Place = tuple[int, int]  # an operand's slot in the table of addresses, and its offset in bytes
NO_PLACE: Place = (0, 0)  # of unused scratch memory


class Operands(NamedTuple):
    """The places of a kernel's operands.

    prepared  places of constant inputs in the kernel's own layout, by input
    """

    inputs: Sequence[Place]
    outputs: Sequence[Place]
    scratch: Place
    prepared: Mapping[int, Place] = MappingProxyType({})


# (argument block, table of addresses) to 0, or to another number if the call failed.
Function = Callable[[int, int], int]
SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class NativeCall(NamedTuple):
    """A call of a C function: its address, and that of its argument block."""

    function: int
    block: int


class Linker:
    """Compiled functions by their sources, and argument blocks, which live as long as the linker.

    on_disk      whether kernels may be read from and kept on disk
    substitutes  Python functions for sources that did not compile
    """

    def __init__(
        self,
        sources: Sequence[KernelSource],
        on_disk: bool,
        substitutes: Mapping[KernelSource, Function] = MappingProxyType({}),
    ) -> None:
        self._addresses = halide_compiler.functions(sources, on_disk)
        self._substitutes = {s: f for s, f in substitutes.items() if not self._addresses[s.name]}
        self._blocks: list[Array] = []
        self.loop_progress: list[Array] = []  # for loops that can pause: all 0 before a call

    def progress(self) -> int:
        """Return the address of a loop's progress, an array of 64-bit integers."""
        self.loop_progress.append(np.zeros(3, np.int64))
        return int(self.loop_progress[-1].ctypes.data)

    def store_words(self, words: Any) -> int:
        """Copy 64-bit integers to memory that lives as long as the linker; return the address."""
        self._blocks.append(np.array(words, np.int64))
        return int(self._blocks[-1].ctypes.data)

    def address(self, source: KernelSource) -> int:
        """Return the address of a function; raise KernelFailed if its source did not compile."""
        if source in self._substitutes:
            return id(self._substitutes[source])
        if not self._addresses[source.name]:
            raise KernelFailed(self.error([source]))
        return self._addresses[source.name]

    def error(
        self, sources: Sequence[KernelSource], substitutes: Container[KernelSource] = ()
    ) -> str:
        """Return which of a kernel's sources has no function; "" if none is missing."""
        for source in sources:
            if not self._addresses[source.name] and source not in substitutes:
                halide = isinstance(source, HalideSource)
                name = "Halide" if halide else compiler.compiler()
                return f"{name} could not compile {source.name}"
        return ""

    def call(self, source: KernelSource, words: Sequence[int]) -> NativeCall:
        """Return a call of a function; raise KernelFailed if its source did not compile."""
        return NativeCall(self.address(source), self.store_words(words))

    def callable(self, call: NativeCall) -> tuple[Function, int]:
        """Return a function that Python can call, and its argument block."""
        substitutes = {id(function): function for function in self._substitutes.values()}
        return substitutes.get(call.function) or SIGNATURE(call.function), call.block


def constants_of(node: Node) -> list[int]:
    return [i for i, x in enumerate(node.inputs) if isinstance(x.op, Constant)]


class Preparation(NamedTuple):
    """The conversion of a constant input, such as weights, to the kernel's own layout.

    nbytes  bytes of the converted input
    calls   (place of the input, place of the result, linker) to the calls that convert it
    """

    nbytes: int
    calls: Callable[[Place, Place, Linker], list[NativeCall]]


class CpuKernel(Kernel, ABC):
    """A kernel that is one or a few calls of C functions.

    preparations  conversions of constant inputs, by input
    substitutes   Python functions for its sources, by source
    """

    preparations: Mapping[int, Preparation] = MappingProxyType({})
    substitutes: Mapping[KernelSource, Function] = MappingProxyType({})

    @property
    def prepared_bytes(self) -> int:
        return sum(preparation.nbytes for preparation in self.preparations.values())

    @abstractmethod
    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        """Return the kernel's calls; raise KernelFailed if a source did not compile."""

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        KernelRunner(self, on_disk=False).run(inputs, outputs, scratch)


@dataclass(frozen=True)
class KernelCall:
    """A kernel's source, and the function that makes the words of its argument block."""

    source: KernelSource
    block: Callable[[Operands], list[int]]


class NativeKernel(CpuKernel):
    """Calls of generated or handwritten C functions."""

    maker = "c"

    def __init__(
        self,
        node: Node,
        parts: Sequence[KernelCall],
        scratch: int = 0,
        strided: Sequence[bool] = (),
        inplace: Sequence[Sequence[int]] = (),
        validates_input: bool = False,
        algorithm: str = "",
    ) -> None:
        self.node = node
        self.parts = parts
        self.scratch = scratch
        self.strided = strided
        self.inplace = inplace
        self.validates_input = validates_input
        self.algorithm = algorithm
        self.sources = [*dict.fromkeys(part.source for part in parts)]

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        return [linker.call(part.source, part.block(operands)) for part in self.parts]


# By op, (op, node, threads) to the kernel of a node; None for unsupported shapes or types.
KernelTable = dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]]

# Runs independent calls: threads, count, then function and argument block of each.
PARALLEL_CALLS = KernelSource("""
int NAME(const int64_t *a, char **slots) {
  #pragma omp parallel for num_threads(a[0]) if (a[0] > 1) schedule(dynamic)
  for (int64_t i = 0; i < a[1]; i++)
    ((int (*)(const int64_t *, char **))a[2 + 2 * i])((const int64_t *)a[3 + 2 * i], slots);
  return 0;
}
""")


class ParallelCallsKernel(NativeKernel):
    """Independent calls, each on one thread."""

    @property
    def texts(self) -> Sequence[KernelSource]:
        return [*self.sources, PARALLEL_CALLS]

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        calls = super().calls(operands, linker)
        words = [self.threads, len(calls), *itertools.chain(*calls)]
        return [linker.call(PARALLEL_CALLS, words)]


class SequenceKernel(CpuKernel):
    """A kernel, and a second one that changes its only output in place.

    first     computes the output
    epilogue  reads the output, and the last inputs, and overwrites the output
    node      of `epilogue`; NumPy computes it if the compiler failed
    """

    def __init__(self, first: CpuKernel, epilogue: Kernel, node: Node) -> None:
        self.first = first
        self.epilogue = epilogue
        self.node = node
        self.epilogue_inputs = len(node.inputs) - 1  # inputs that `first` does not read
        self.maker = first.maker
        self.algorithm = f"{first.algorithm} + {epilogue.name}"
        self.sources = [*first.sources, *epilogue.sources]
        self.scratch = max(first.scratch, epilogue.scratch)
        self.alignment = max(first.alignment, epilogue.alignment)
        self.strided = (*first.strided, *(False for _ in range(self.epilogue_inputs)))
        self.inplace = first.inplace
        self.validates_input = first.validates_input or epilogue.validates_input
        self.threads = max(first.threads, epilogue.threads)
        self.preparations = first.preparations

    @property
    def texts(self) -> Sequence[KernelSource]:
        return [*self.first.texts, *self.epilogue.texts]

    def _split_inputs(self, inputs: Sequence[T], outputs: Sequence[T]) -> tuple[list[T], list[T]]:
        """Return the inputs of both kernels."""
        end = len(inputs) - self.epilogue_inputs
        return [*inputs[:end]], [*outputs, *inputs[end:]]

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        assert isinstance(self.epilogue, CpuKernel), "without a compiler Python runs both"
        first, second = (
            operands._replace(inputs=inputs)
            for inputs in self._split_inputs(operands.inputs, operands.outputs)
        )
        return self.first.calls(first, linker) + self.epilogue.calls(second, linker)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        first, second = self._split_inputs(inputs, outputs)
        self.first.run(first, outputs, scratch)
        try:
            self.epilogue.run(second, outputs, scratch)
        except KernelFailed:
            NumpyKernel(self.node).run(second, outputs, scratch)


class ConvertedConstants:
    """Converted constants of kernels, with their memory and slots.

    slots  the table of addresses
    first  the first free slot
    """

    def __init__(self, slots: ctypes.Array[ctypes.c_uint64], first: int, linker: Linker) -> None:
        self._slots = slots
        self._first = first
        self._linker = linker
        self._memory: list[Array] = []

    def convert(
        self, kernel: CpuKernel, inputs: Sequence[Place]
    ) -> tuple[dict[int, Place], list[NativeCall]]:
        """Return the places of a kernel's converted inputs, and the calls that convert them."""
        places: dict[int, Place] = {}
        calls: list[NativeCall] = []
        for i, preparation in kernel.preparations.items():
            places[i] = (self._first + len(self._memory), 0)
            self._memory.append(aligned_empty(Spec((preparation.nbytes,), np.dtype(np.uint8))))
            self._slots[places[i][0]] = address_of(self._memory[-1])
            calls += preparation.calls(inputs[i], places[i], self._linker)
        return places, calls


class KernelRunner:
    """A kernel outside of a program, called from Python.

    on_disk  whether kernels may be read from and kept on disk
    """

    def __init__(self, kernel: CpuKernel, on_disk: bool) -> None:
        self._kernel = kernel
        self._linker = Linker(kernel.texts, on_disk, kernel.substitutes)
        self._calls: list[tuple[Function, int]] = []
        self._conversions: list[tuple[Function, int]] = []  # constants, before the first call
        self._slots = (ctypes.c_uint64 * 0)()

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Run; raise KernelFailed if the kernel fails or a source did not compile."""
        arrays = (*inputs, *outputs, scratch)
        if not self._calls:
            self._link(len(inputs), len(arrays))
        for slot, array in enumerate(arrays):
            self._slots[slot] = address_of(array)
        calls = [*self._conversions, *self._calls]
        self._conversions = []
        for function, block in calls:
            if function(block, ctypes.addressof(self._slots)):
                raise KernelFailed(f"{self._kernel.name} reported an error")

    def _link(self, inputs: int, count: int) -> None:
        """Assign slots: to each operand, to the scratch memory, and to each converted constant."""
        places = [(slot, 0) for slot in range(count)]
        self._slots = (ctypes.c_uint64 * (count + len(self._kernel.preparations)))()
        self._prepared = ConvertedConstants(self._slots, count, self._linker)
        prepared, conversions = self._prepared.convert(self._kernel, places)
        operands = Operands(places[:inputs], places[inputs:-1], places[-1], prepared)
        self._conversions = [*map(self._linker.callable, conversions)]
        self._calls = [*map(self._linker.callable, self._kernel.calls(operands, self._linker))]


def call(text: str | KernelSource, *values: int, scratch: bool = False) -> KernelCall:
    """Return a call whose argument block is `values`, then slot and offset of each operand.

    scratch  whether the place of the scratch memory follows
    """
    source = text if isinstance(text, KernelSource) else KernelSource(text)

    def block(operands: Operands) -> list[int]:
        ins, outs, scratch_place, _ = operands
        places = (*ins, *outs, scratch_place) if scratch else (*ins, *outs)
        return [*values, *itertools.chain(*places)]

    return KernelCall(source, block)

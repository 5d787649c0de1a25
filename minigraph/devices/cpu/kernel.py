"""Kernels that the walker calls: of C text, gathered, and one after another; and linking them."""

from __future__ import annotations

import ctypes
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from minigraph.devices.cpu import compiler
from minigraph.devices.reference import NumpyKernel
from minigraph.graph import Array, Constant, Node, Spec, aligned_empty
from minigraph.jit.source import KernelSource
from minigraph.program import Kernel, KernelFailed

THREADED = 32768  # elements from which on a second thread pays
MOST_CACHE = 32 << 20  # bytes


@functools.cache
def cache_bytes() -> int:
    """Return the size of the last-level cache: 32 MiB where Linux does not say, or says more.

    A virtual machine is told of a whole socket's cache, of which it has but a share.
    """
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
    except OSError:
        return MOST_CACHE
    return min(int(text.rstrip("KM")) << (20 if text.endswith("M") else 10), MOST_CACHE)


def aligned_bytes(nbytes: int) -> Array:
    """Return uninitialised memory that begins at a cache line."""
    return aligned_empty(Spec((nbytes,), np.dtype(np.uint8)))


def address_of(array: Array) -> int:
    """Return where an array's elements are; five times as fast as `array.ctypes.data`."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # read-only, or empty
        return int(array.ctypes.data)


def threads_for(elements: int, threads: int) -> int:
    """Return how many threads are worth it."""
    return threads if elements >= THREADED else 1


Place = tuple[int, int]  # of an operand: slot in the table of addresses, and offset in bytes
NOWHERE: Place = (0, 0)  # of scratch memory that is not used


class Operands(NamedTuple):
    """Where the operands of a kernel are.

    prepared  what was made once of inputs that are constants, by input
    """

    inputs: Sequence[Place]
    outputs: Sequence[Place]
    scratch: Place
    prepared: Mapping[int, Place] = MappingProxyType({})


class NativeCall(NamedTuple):
    """A call of a C function: its address, and that of its argument block."""

    function: int
    block: int


class Linker:
    """Compiled functions by their texts, and argument blocks, which live as long as the linker.

    on_disk  whether kernels may be looked for, and kept, on disk
    """

    def __init__(self, sources: Sequence[KernelSource], on_disk: bool) -> None:
        self._addresses = compiler.KERNELS.functions(sources, on_disk)
        self._blocks: list[Array] = []
        self.begun: list[Array] = []  # how far loops have come that pause: all 0 before a call

    def progress(self) -> int:
        """Return the address of what a loop keeps of how far it has come."""
        self.begun.append(np.zeros(3, np.int64))
        return int(self.begun[-1].ctypes.data)

    def keep(self, words: Any) -> int:
        """Return the address of 64-bit integers, which live as long as the linker."""
        self._blocks.append(np.array(words, np.int64))
        return int(self._blocks[-1].ctypes.data)

    def address(self, source: KernelSource) -> int:
        """Return where a function is; raises KernelFailed if its text could not be compiled."""
        address = self._addresses[source.name]
        if not address:
            raise KernelFailed(f"{compiler.compiler()} could not compile {source.name}")
        return address

    def call(self, source: KernelSource, words: Sequence[int]) -> NativeCall:
        """Return the call of a function; raises KernelFailed if its text could not be compiled."""
        return NativeCall(self.address(source), self.keep(words))


def constants_of(node: Node) -> list[int]:
    """Return which inputs of a node are constants."""
    return [i for i, x in enumerate(node.inputs) if isinstance(x.op, Constant)]


class Preparation(NamedTuple):
    """What a kernel makes once of an input that is a constant, such as weights in its own layout.

    nbytes  that it takes
    calls   (place of the input, place of what is made, linker) to the calls that make it
    """

    nbytes: int
    calls: Callable[[Place, Place, Linker], list[NativeCall]]


class CpuKernel(Kernel, ABC):
    """A kernel that is one or a few calls of C functions.

    preparations  by input
    """

    preparations: Mapping[int, Preparation] = MappingProxyType({})

    @property
    def prepared_bytes(self) -> int:
        return sum(each.nbytes for each in self.preparations.values())

    @property
    @abstractmethod
    def texts(self) -> Sequence[KernelSource]:
        """What has to be compiled for it."""

    @abstractmethod
    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        """Return its calls in order; raises KernelFailed if a text could not be compiled."""


@dataclass(frozen=True)
class KernelCall:
    """A kernel's text, and its argument block once the places of its operands are known.

    block(inputs, outputs, scratch)
    """

    source: KernelSource
    block: Callable[[Sequence[Place], Sequence[Place], Place], list[int]]


class NativeKernel(CpuKernel):
    """Calls of kernels of C text.

    node  that it computes: NumPy does its work where the compiler failed
    """

    maker = "c"

    def __init__(
        self,
        node: Node,
        parts: Sequence[KernelCall],
        scratch: int = 0,
        strided: Sequence[bool] = (),
        inplace: Sequence[Sequence[int]] = (),
        refuses: bool = False,
        algorithm: str = "",
    ) -> None:
        self.node = node
        self.parts = parts
        self.scratch = scratch
        self.strided = strided
        self.inplace = inplace
        self.refuses = refuses
        self.algorithm = algorithm
        self.sources = [*dict.fromkeys(part.source for part in parts)]

    @property
    def texts(self) -> Sequence[KernelSource]:
        return self.sources

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        return [linker.call(part.source, part.block(*operands[:3])) for part in self.parts]

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Compute in NumPy: where the compiler failed."""
        NumpyKernel(self.node).run(inputs, outputs, scratch)


class MeasuredKernel(NativeKernel):
    """Fails where the compiler did, so that what was measured next takes its place."""

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        raise KernelFailed(f"{self.name} could not be compiled")


# Calls that do not depend on each other: threads, count, then function and argument block of each.
TOGETHER = KernelSource("""
int NAME(const int64_t *a, char **slots) {
  #pragma omp parallel for num_threads(a[0]) if (a[0] > 1) schedule(dynamic)
  for (int64_t i = 0; i < a[1]; i++)
    ((int (*)(const int64_t *, char **))a[2 + 2 * i])((const int64_t *)a[3 + 2 * i], slots);
  return 0;
}
""")


class TogetherKernel(NativeKernel):
    """Calls that do not depend on each other; threads take one after the other."""

    def __init__(
        self,
        node: Node,
        parts: Sequence[KernelCall],
        threads: int,
        inplace: Sequence[Sequence[int]],
        scratch: int,
    ) -> None:
        super().__init__(node, parts, scratch, (True,) * len(node.inputs), inplace)
        self.threads = threads

    @property
    def texts(self) -> Sequence[KernelSource]:
        return [*self.sources, TOGETHER]

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        each = super().calls(operands, linker)
        words = [self.threads, len(each), *itertools.chain(*each)]
        return [linker.call(TOGETHER, words)]


class SequenceKernel(CpuKernel):
    """A kernel, and one that then changes its only output in place.

    first  computes the output
    then   has the output for its input and for its output
    """

    def __init__(self, first: Kernel, then: Kernel) -> None:
        self.first = first
        self.then = then
        self.maker = first.maker
        self.algorithm = f"{first.algorithm} + {then.name}"
        self.sources = [*first.sources, *then.sources]
        self.scratch = max(first.scratch, then.scratch)
        self.alignment = max(first.alignment, then.alignment)
        self.strided = first.strided
        self.inplace = first.inplace
        self.refuses = first.refuses or then.refuses
        self.threads = max(first.threads, then.threads)
        self.preparations = preparations_of(first)

    @property
    def texts(self) -> Sequence[KernelSource]:
        return [text for kernel in (self.first, self.then) for text in texts_of(kernel)]

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        changed = operands._replace(inputs=operands.outputs)
        return calls_of(self.first, operands, linker) + calls_of(self.then, changed, linker)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        self.first.run(inputs, outputs, scratch)
        self.then.run(outputs, outputs, scratch)


def preparations_of(kernel: Kernel) -> Mapping[int, Preparation]:
    """Return what a kernel makes once of inputs that are constants: nothing for NumPy's."""
    return kernel.preparations if isinstance(kernel, CpuKernel) else {}


class Prepared:
    """What kernels make of constants, in memory and slots of its own.

    slots  addresses by slot
    first  the slot from which on they are free
    """

    def __init__(self, slots: ctypes.Array[ctypes.c_uint64], first: int, linker: Linker) -> None:
        self._slots = slots
        self._first = first
        self._linker = linker
        self._memory: list[Array] = []

    def of(
        self, kernel: Kernel, inputs: Sequence[Place]
    ) -> tuple[dict[int, Place], list[NativeCall]]:
        """Return where a kernel will find what it makes of these inputs, and what makes it."""
        places: dict[int, Place] = {}
        calls: list[NativeCall] = []
        for i, preparation in preparations_of(kernel).items():
            places[i] = (self._first + len(self._memory), 0)
            self._memory.append(aligned_bytes(preparation.nbytes))
            self._slots[places[i][0]] = address_of(self._memory[-1])
            calls += preparation.calls(inputs[i], places[i], self._linker)
        return places, calls


def texts_of(kernel: Kernel) -> Sequence[KernelSource]:
    """Return what has to be compiled for a kernel: nothing for NumPy's."""
    return kernel.texts if isinstance(kernel, CpuKernel) else ()


def calls_of(kernel: Kernel, operands: Operands, linker: Linker) -> list[NativeCall]:
    """Return the calls of a kernel; raises KernelFailed if Python has to run it."""
    if not isinstance(kernel, CpuKernel):
        raise KernelFailed(f"{kernel.name} is no native kernel")
    return kernel.calls(operands, linker)


def call(text: str, *values: int, scratch: bool = False) -> KernelCall:
    """Return a call whose argument block is `values`, then slot and offset of each operand.

    scratch  whether those of the scratch memory follow
    """

    def block(ins: Sequence[Place], outs: Sequence[Place], room: Place) -> list[int]:
        places = (*ins, *outs, room) if scratch else (*ins, *outs)
        return [*values, *(v for place in places for v in place)]

    return KernelCall(KernelSource(text), block)

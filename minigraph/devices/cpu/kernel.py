"""Kernels as calls of C functions: how they are linked, and how one runs outside of a program."""

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

from minigraph.devices.cpu import compiler, halide_compiler
from minigraph.devices.reference import NumpyKernel
from minigraph.graph import Array, Constant, Node, Op, Spec, aligned_empty
from minigraph.jit.halide.source import HalideSource
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


# Where an array has the address of its elements, after its id: NumPy's binary interface says so.
ADDRESS = object.__basicsize__


def address_of(array: Array) -> int:
    """Return where an array's elements are; six times as fast as `array.ctypes.data`."""
    return ctypes.c_void_p.from_address(id(array) + ADDRESS).value or 0


def threads_for(elements: int, threads: int) -> int:
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


# Of an argument block and the table of addresses: whether it failed.
Function = Callable[[int, int], int]
SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class NativeCall(NamedTuple):
    """A call of a C function: its address, and that of its argument block."""

    function: int
    block: int


class Linker:
    """Compiled functions by their texts, and argument blocks, which live as long as the linker.

    on_disk      whether kernels may be looked for, and kept, on disk
    substitutes  Python functions for texts that could not be compiled, where Python makes the calls
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
        if source in self._substitutes:
            return id(self._substitutes[source])
        address = self._addresses[source.name]
        if not address:
            who = "Halide" if isinstance(source, HalideSource) else compiler.compiler()
            raise KernelFailed(f"{who} could not compile {source.name}")
        return address

    def call(self, source: KernelSource, words: Sequence[int]) -> NativeCall:
        """Return the call of a function; raises KernelFailed if its text could not be compiled."""
        return NativeCall(self.address(source), self.keep(words))

    def callable(self, call: NativeCall) -> tuple[Function, int]:
        """Return a function that Python can call, and its argument block."""
        substitutes = {id(function): function for function in self._substitutes.values()}
        return substitutes.get(call.function) or SIGNATURE(call.function), call.block


def constants_of(node: Node) -> list[int]:
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
    substitutes   what Python can do in place of its texts
    """

    preparations: Mapping[int, Preparation] = MappingProxyType({})
    substitutes: Mapping[KernelSource, Function] = MappingProxyType({})

    @property
    def prepared_bytes(self) -> int:
        return sum(each.nbytes for each in self.preparations.values())

    @abstractmethod
    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        """Return its calls in order; raises KernelFailed if a text could not be compiled."""

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        KernelRunner(self, on_disk=False).run(inputs, outputs, scratch)


@dataclass(frozen=True)
class KernelCall:
    """A kernel's text, and its argument block once the places of its operands are known.

    block(inputs, outputs, scratch)
    """

    source: KernelSource
    block: Callable[[Sequence[Place], Sequence[Place], Place], list[int]]


class NativeKernel(CpuKernel):
    """Calls of kernels of C text."""

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

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        return [linker.call(part.source, part.block(*operands[:3])) for part in self.parts]


# By op, (op, node, threads) to the kernel of a node; None where it fits no shapes or types of such.
KernelTable = dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]]

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
    node   that `then` computes: NumPy does, where the compiler failed
    """

    def __init__(self, first: CpuKernel, then: Kernel, node: Node) -> None:
        self.first = first
        self.then = then
        self.node = node
        self.maker = first.maker
        self.algorithm = f"{first.algorithm} + {then.name}"
        self.sources = [*first.sources, *then.sources]
        self.scratch = max(first.scratch, then.scratch)
        self.alignment = max(first.alignment, then.alignment)
        self.strided = first.strided
        self.inplace = first.inplace
        self.refuses = first.refuses or then.refuses
        self.threads = max(first.threads, then.threads)
        self.preparations = first.preparations

    @property
    def texts(self) -> Sequence[KernelSource]:
        return [*self.first.texts, *self.then.texts]

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        assert isinstance(self.then, CpuKernel), "without a compiler Python runs both"
        changed = operands._replace(inputs=operands.outputs)
        return self.first.calls(operands, linker) + self.then.calls(changed, linker)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        self.first.run(inputs, outputs, scratch)
        try:
            self.then.run(outputs, outputs, scratch)
        except KernelFailed:
            NumpyKernel(self.node).run(outputs, outputs, scratch)


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
        self, kernel: CpuKernel, inputs: Sequence[Place]
    ) -> tuple[dict[int, Place], list[NativeCall]]:
        """Return where a kernel will find what it makes of these inputs, and what makes it."""
        places: dict[int, Place] = {}
        calls: list[NativeCall] = []
        for i, preparation in kernel.preparations.items():
            places[i] = (self._first + len(self._memory), 0)
            self._memory.append(aligned_empty(Spec((preparation.nbytes,), np.dtype(np.uint8))))
            self._slots[places[i][0]] = address_of(self._memory[-1])
            calls += preparation.calls(inputs[i], places[i], self._linker)
        return places, calls


class KernelRunner:
    """A kernel outside of a program, which Python calls.

    on_disk  whether kernels may be looked for, and kept, on disk
    """

    def __init__(self, kernel: CpuKernel, on_disk: bool) -> None:
        self._kernel = kernel
        self._linker = Linker(kernel.texts, on_disk, kernel.substitutes)
        self._calls: list[tuple[Function, int]] = []
        self._preparing: list[tuple[Function, int]] = []  # constants, before the first call
        self._slots = (ctypes.c_uint64 * 0)()

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Run; raises KernelFailed if it reports an error, or a text could not be compiled."""
        arrays = (*inputs, *outputs, scratch)
        if not self._calls:
            self._link(len(inputs), len(arrays))
        for slot, array in enumerate(arrays):
            self._slots[slot] = address_of(array)
        calls = [*self._preparing, *self._calls]
        self._preparing = []
        for function, block in calls:
            if function(block, ctypes.addressof(self._slots)):
                raise KernelFailed(f"{self._kernel.name} reported an error")

    def _link(self, inputs: int, operands: int) -> None:
        """Give each operand a slot, the scratch memory last, and then each prepared constant."""
        places = [(slot, 0) for slot in range(operands)]
        self._slots = (ctypes.c_uint64 * (operands + len(self._kernel.preparations)))()
        self._prepared = Prepared(self._slots, operands, self._linker)
        prepared, preparing = self._prepared.of(self._kernel, places)
        bound = Operands(places[:inputs], places[inputs:-1], places[-1], prepared)
        self._preparing = [*map(self._linker.callable, preparing)]
        self._calls = [*map(self._linker.callable, self._kernel.calls(bound, self._linker))]


def call(text: str | KernelSource, *values: int, scratch: bool = False) -> KernelCall:
    """Return a call whose argument block is `values`, then slot and offset of each operand.

    scratch  whether those of the scratch memory follow
    """
    source = text if isinstance(text, KernelSource) else KernelSource(text)

    def block(ins: Sequence[Place], outs: Sequence[Place], room: Place) -> list[int]:
        places = (*ins, *outs, room) if scratch else (*ins, *outs)
        return [*values, *(v for place in places for v in place)]

    return KernelCall(source, block)

"""Where candidates for the CPU are measured: kernels are called as the walker calls them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence

from minigraph.autotune.candidate import HostBench, Run, Runner
from minigraph.devices.cpu import compiler
from minigraph.devices.cpu.kernel import (
    CpuKernel,
    Linker,
    NativeCall,
    Operands,
    Prepared,
    address_of,
    calls_of,
)
from minigraph.errors import GraphError
from minigraph.graph import Array

Call = tuple[Callable[[int, int], int], int]  # a function, and its argument block
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class CpuBench(HostBench):
    """The workbench of this machine's processor.

    on_disk  whether kernels may be looked for, and kept, on disk
    """

    def __init__(self, on_disk: bool) -> None:
        self.on_disk = on_disk

    def compile(self, kernels: Iterable[Runner]) -> None:
        texts = [
            text for kernel in kernels if isinstance(kernel, CpuKernel) for text in kernel.texts
        ]
        if texts and compiler.compiler():
            compiler.KERNELS.functions(texts, self.on_disk)

    def runner(self, kernel: Runner) -> Run:
        if isinstance(kernel, CpuKernel) and compiler.compiler():
            return KernelRunner(kernel, self.on_disk)
        return kernel.run


class KernelRunner:
    """A kernel alone, outside of a program: called with its inputs, outputs and scratch memory.

    Raises KernelFailed if one of its texts could not be compiled.
    """

    def __init__(self, kernel: CpuKernel, on_disk: bool) -> None:
        self._kernel = kernel
        self._linker = Linker(kernel.texts, on_disk)
        self._calls: list[Call] = []
        self._once: list[Call] = []  # what prepares constants: before the first call
        self._slots = (ctypes.c_uint64 * 0)()

    def _link(self, inputs: int, operands: int) -> None:
        """Give each operand a slot, and behind them each constant as the kernel prepares it.

        The inputs come first, the scratch memory last.
        """
        places = [(slot, 0) for slot in range(operands)]
        self._slots = (ctypes.c_uint64 * (operands + len(self._kernel.preparations)))()
        self._prepared = Prepared(self._slots, operands, self._linker)
        prepared, once = self._prepared.of(self._kernel, places)
        given = Operands(places[:inputs], places[inputs:-1], places[-1], prepared)
        self._once = _callable(once)
        self._calls = _callable(calls_of(self._kernel, given, self._linker))

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        arrays = (*inputs, *outputs, scratch)
        if not self._calls:
            self._link(len(inputs), len(arrays))
        for slot, array in enumerate(arrays):
            self._slots[slot] = address_of(array)
        calls = [*self._once, *self._calls]
        self._once = []
        for function, block in calls:
            if function(block, ctypes.addressof(self._slots)):
                raise GraphError(f"{self._kernel.name} reported an error")


def _callable(calls: Sequence[NativeCall]) -> list[Call]:
    return [(FUNCTION(call.function), call.block) for call in calls]

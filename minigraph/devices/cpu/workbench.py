"""Where candidates for the CPU are measured: kernels are called as the walker calls them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from minigraph.autotune.candidate import HostBench, Run, Runner
from minigraph.devices.cpu import compiler
from minigraph.devices.cpu.kernel import CpuKernel, Linker, Operands, calls_of
from minigraph.devices.cpu.walker import address_of
from minigraph.errors import GraphError
from minigraph.graph import Array

FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class CpuBench(HostBench):
    """The workbench of this machine's processor.

    on_disk  whether kernels may be looked for, and kept, on disk
    """

    def __init__(self, on_disk: bool) -> None:
        self.on_disk = on_disk

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
        self._calls: list[tuple[Callable[[int, int], int], int]] = []
        self._slots = (ctypes.c_uint64 * 0)()

    def _link(self, inputs: int, operands: int) -> None:
        """Give each operand a slot: the inputs first, the scratch memory last."""
        self._slots = (ctypes.c_uint64 * operands)()
        places = [(slot, 0) for slot in range(operands)]
        calls = calls_of(
            self._kernel, Operands(places[:inputs], places[inputs:-1], places[-1]), self._linker
        )
        self._calls = [(FUNCTION(call.function), call.block) for call in calls]

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        arrays = (*inputs, *outputs, scratch)
        if len(self._slots) != len(arrays):
            self._link(len(inputs), len(arrays))
        for slot, array in enumerate(arrays):
            self._slots[slot] = address_of(array)
        for function, block in self._calls:
            if function(block, ctypes.addressof(self._slots)):
                raise GraphError(f"{self._kernel.name} reported an error")

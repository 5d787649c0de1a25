"""From kernels to what the walker calls: addresses of functions, and their argument blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from minigraph.devices.cpu import compiler
from minigraph.graph import Array
from minigraph.jit.source import KernelSource
from minigraph.program import KernelFailed

Place = tuple[int, int]  # of an operand: slot in the table of addresses, and offset in bytes


class Operands(NamedTuple):
    """Where the operands of a kernel are."""

    inputs: Sequence[Place]
    outputs: Sequence[Place]
    scratch: Place


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

    def call(self, source: KernelSource, words: Sequence[int]) -> NativeCall:
        """Return the call of a function; raises KernelFailed if its text could not be compiled."""
        address = self._addresses[source.name]
        if not address:
            raise KernelFailed(f"{compiler.compiler()} could not compile {source.name}")
        self._blocks.append(np.array(words, np.int64))
        return NativeCall(address, int(self._blocks[-1].ctypes.data))

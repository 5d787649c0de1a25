"""A kernel of C text by itself, outside a program: as the autotuner runs it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from minigraph.devices.cpu import compiler
from minigraph.devices.cpu.kernel import NativeKernel
from minigraph.devices.cpu.walker import address_of
from minigraph.errors import GraphError
from minigraph.graph import Array

FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Standalone:
    """What runs the calls of a kernel on arrays.  GraphError if the compiler fails."""

    def __init__(self, kernel: NativeKernel, inputs: int, outputs: int, on_disk: bool) -> None:
        addresses = compiler.load([call.source for call in kernel.calls], on_disk)
        if not all(addresses):
            raise GraphError(f"{compiler.compiler()} could not compile {kernel.name}")
        self.name = kernel.name
        self.scratch = kernel.scratch
        self.functions = [FUNCTION(address) for address in addresses]
        self.slots = (ctypes.c_uint64 * (inputs + outputs + 1))()  # an operand each, and scratch
        places = [(slot, 0) for slot in range(len(self.slots))]
        ins, outs = places[:inputs], places[inputs:-1]
        self.blocks = [np.array(c.block(ins, outs, places[-1]), np.int64) for c in kernel.calls]

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        for slot, array in enumerate((*inputs, *outputs, scratch)):
            self.slots[slot] = address_of(array)
        for function, block in zip(self.functions, self.blocks, strict=True):
            if function(block.ctypes.data, ctypes.addressof(self.slots)):
                raise GraphError(f"{self.name} reported an error")

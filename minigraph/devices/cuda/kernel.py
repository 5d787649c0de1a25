"""Kernels of steps on a CUDA device: launches, or calls of a library.

A kernel that is launched is

    struct NAME_args { long long w[W]; };
    extern "C" __global__ void NAME(const __grid_constant__ NAME_args a)

Its argument is one block of W words of 8 bytes: addresses, extents, strides, constants.  So one
source serves all shapes, and a launch passes only the bytes of the words.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from minigraph.devices.reference import NumpyKernel
from minigraph.graph import Array, IndexRange, Node
from minigraph.jit.source import KernelSource
from minigraph.program import Kernel

MAX_ARGUMENT_WORDS = 4000  # words of an argument: CUDA allows 32,764 bytes

Dim3 = tuple[int, int, int]
Addresses = Sequence[int]
Operands = tuple[Addresses, Addresses, int]  # inputs, outputs and the scratch memory
Words = Callable[[Addresses, Addresses, int], list[int]]  # from operands to the words of a launch


@dataclass(frozen=True)
class Launch:
    """A kernel, its threads, and its words once the addresses of its operands are known."""

    source: KernelSource
    grid: Dim3
    block: Dim3
    words: Words

    def within(self, select: Callable[[Addresses, Addresses, int], Operands]) -> Launch:
        """Return the launch as a part of another kernel.

        select  returns the launch's operands, given those of the other kernel
        """
        return replace(self, words=lambda *operands: self.words(*select(*operands)))


class DeviceKernel(Kernel):
    """A kernel on the device.

    launches  of generated or handwritten kernels
    """

    def __init__(self, node: Node, launches: Sequence[Launch]) -> None:
        self.node = node
        self.launches = launches
        self.sources = [*dict.fromkeys(launch.source for launch in launches)]

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Compute in NumPy."""
        NumpyKernel(self.node).run(inputs, outputs, scratch)


@dataclass(eq=False, repr=False)
class CudaKernel(DeviceKernel):
    """A kernel of one or a few launches.

    range  valid range of the integers that the kernel checks.  After its outputs the kernel gets
           the address of an int, which it sets to 1 if an integer is out of range.  Such an integer
           never makes it access memory out of bounds
    """

    node: Node
    launches: Sequence[Launch]
    scratch: int = 0
    strided: Sequence[bool] = ()
    inplace: Sequence[Sequence[int]] = ()
    range: IndexRange | None = None
    alignment: int = 1
    maker: str = field(default="cuda", init=False)

    def __post_init__(self) -> None:
        super().__init__(self.node, self.launches)
        self.validates_input = self.range is not None


class LibraryKernel(DeviceKernel):
    """A kernel that calls a library, which enqueues its work and allocates nothing.

    library_position  number of launches before the call of the library; the others follow it
    """

    library_position = 0

    @abstractmethod
    def enqueue(self, inputs: Addresses, outputs: Addresses, scratch: int, stream: int) -> None:
        """Enqueue the work; operands are addresses in device memory."""

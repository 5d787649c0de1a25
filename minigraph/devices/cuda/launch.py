"""One launch of a CUDA kernel: its text, how many threads run it, and its argument.

A kernel is

    struct NAME_args { long long w[W]; };
    extern "C" __global__ void NAME(const __grid_constant__ NAME_args a)

Its argument is one block of W words of 8 bytes: addresses, extents, strides, constants.  So a text
serves every use of it, and a launch needs no more than the bytes of its words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minigraph.jit.source import KernelSource

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """A kernel, its threads, and its words once the addresses of its operands are known.

    words  called with the addresses of the inputs, of the outputs and of the scratch memory
    """

    source: KernelSource
    grid: Dim3
    block: Dim3
    words: Callable[[Sequence[int], Sequence[int], int], list[int]]

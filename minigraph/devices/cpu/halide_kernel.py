"""Calls of Halide's kernels: their buffers, and the parts that threads compute.

A pipeline takes buffer descriptors, which are stored next to the argument block; a call only sets
their addresses.  A part is a range of one axis of all operands.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from ctypes import CFUNCTYPE, c_int, c_int64, c_void_p
from types import MappingProxyType

from minigraph.devices.cpu.kernel import (
    PARALLEL_CALLS,
    Linker,
    NativeCall,
    NativeKernel,
    Operands,
    threads_for,
)
from minigraph.devices.parts import KernelPart, KernelParts
from minigraph.graph import Node
from minigraph.jit.halide.source import HalideSource, halide_source
from minigraph.jit.kernel import SPLIT_MULTIPLE
from minigraph.jit.source import KernelSource
from minigraph.platform.signals import signals_deferred

HEADER_WORDS = 3  # words of an argument block before the buffers
HOST_OFFSET = 16  # bytes of a buffer before the address of its elements
# The argument block: the kernel's function, its arguments, the number of buffers; then address,
# slot and offset of each buffer.
CALL = KernelSource("""
int NAME(const int64_t *a, char **slots) {
  for (const int64_t *at = a + 3; at < a + 3 + 3 * a[2]; at += 3)
    ((char **)at[0])[2] = slots[at[1]] + at[2];
  return ((int (*)(void **))a[0])((void **)a[1]);
}
""")
FUNCTION = CFUNCTYPE(c_int, c_void_p)


@functools.cache
def _pool(threads: int) -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(threads, "minigraph-halide")


os.register_at_fork(after_in_child=_pool.cache_clear)


def call(block: int, slots: int) -> int:
    """Call a kernel from Python, as CALL does in C."""
    function, arguments, count = (c_int64 * HEADER_WORDS).from_address(block)
    words = (c_int64 * (HEADER_WORDS + 3 * count)).from_address(block)[HEADER_WORDS:]
    for buffer, slot, offset in zip(words[::3], words[1::3], words[2::3], strict=True):
        base = c_int64.from_address(slots + 8 * slot).value
        c_int64.from_address(buffer + HOST_OFFSET).value = base + offset
    return int(FUNCTION(function)(arguments))


def call_in_parallel(block: int, slots: int) -> int:
    """Make independent calls from Python, as PARALLEL_CALLS does in C."""
    count = c_int64.from_address(block + 8).value
    first, *others = (c_int64 * (2 + 2 * count)).from_address(block)[3::2]
    with signals_deferred():  # an interrupt might end the call while a part still writes
        pool = _pool(len(others))
        futures = [pool.submit(call, other, slots) for other in others]
        return any([call(first, slots), *(future.result() for future in futures)])


class HalideKernel(NativeKernel):
    """Calls of Halide's kernels, one after the other, each in one part for each thread."""

    maker = "halide"
    substitutes = MappingProxyType({CALL: call, PARALLEL_CALLS: call_in_parallel})

    def __init__(
        self, node: Node, generated: KernelParts, max_threads: int, strided: Sequence[bool]
    ) -> None:
        self.pairs = [(part, halide_source(part.kernel)) for part in generated.parts]
        self.max_threads = max_threads
        safe = all(source.overwrites for _, source in self.pairs)
        inplace = generated.inplace if safe else [()] * len(node.inputs)
        super().__init__(node, (), 0, strided, inplace)
        self.sources = [*dict.fromkeys(source for _, source in self.pairs)]

    @property
    def texts(self) -> Sequence[KernelSource]:
        return [*self.sources, CALL, PARALLEL_CALLS]

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        calls: list[NativeCall] = []
        for part, source in self.pairs:
            blocks = self._blocks(part, source, operands, linker)
            parallel = [linker.call(CALL, block) for block in blocks]
            if len(parallel) > 1:
                words = [len(parallel), len(parallel), *itertools.chain(*parallel)]
                parallel = [linker.call(PARALLEL_CALLS, words)]
            calls += parallel
        return calls

    def _blocks(
        self, part: KernelPart, source: HalideSource, operands: Operands, linker: Linker
    ) -> Iterator[list[int]]:
        """Yield the argument block of each part of a call."""
        nest, inputs, axes = part.kernel.nest, source.pattern.inputs, source.axes(part.kernel.nest)
        results = [(slot, offset + part.offset) for slot, offset in operands.outputs[part.outs]]
        places = [*operands.inputs[part.ins], *results]
        constants = part.kernel.constants
        numbers = linker.store_words([0, *constants, *(n for n, _ in nest.loops)])
        scalars = [numbers + 8 * i for i in range(1 + len(constants) + len(nest.loops))]
        units, loops = range(source.units), range(source.units, len(axes))
        per_unit = source.outputs(True)
        divided, ranges = self._ranges(source, [n for n, _ in axes], nest.count * nest.length)
        for begin, end in ranges:
            words: list[int] = []
            for k in (*range(inputs), *per_unit, *source.outputs(False)):
                slot, offset = places[k]
                dimensions: list[int] = []
                for axis in source.order(units, range(0) if k in per_unit else loops):
                    extent, strides = axes[axis]
                    start, stop = (begin, end) if axis == divided else (0, extent)
                    stride = strides[k] // nest.sizes[k]
                    dimensions += [stop - start << 32 | start, stride & 0xFFFFFFFF]
                    offset += start * strides[k]
                rank = len(dimensions) // 2
                buffer = [0, 0, 0, 0, rank << 32, linker.store_words(dimensions), 0]
                words += [linker.store_words(buffer), slot, offset]
            buffers = words[::3]
            arguments = linker.store_words([*buffers[:inputs], *scalars, *buffers[inputs:]])
            address = linker.address(source)
            yield [address, arguments, len(buffers), *words]

    def _ranges(
        self, source: HalideSource, extents: Sequence[int], elements: int
    ) -> tuple[int, list[tuple[int, int]]]:
        """Return the axis that threads divide among themselves, and the range of each thread."""
        shared = range(source.units or source.loops)
        innermost, *_ = source.order(range(source.units), range(source.units, len(extents)))
        multiples = [SPLIT_MULTIPLE if a == innermost else 1 for a in shared]
        divided = max(shared, key=lambda a: extents[a] / multiples[a])
        extent, step = extents[divided], multiples[divided]
        threads = threads_for(elements * source.pattern.lanes, self.max_threads)
        count = min(threads, math.ceil(extent / step))
        bounds = [math.ceil(extent * i / (count * step)) * step for i in range(count)]
        return divided, [*itertools.pairwise([*bounds, extent])]

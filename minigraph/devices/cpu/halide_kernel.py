"""Calls of Halide's kernels: their buffers, and the parts that threads compute.

A pipeline takes descriptions of buffers.  They stand beside the argument block and do not change,
but for the addresses, which a call fills in.  A part is a range of one axis of all outputs.

    threads, the kernel's function, inputs, outputs, parts,
    then for each input: its buffer, slot, offset,
    then for each part: its arguments, then for each output: its buffer, slot, offset
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import itertools
import math
import operator
import os
from collections.abc import Iterator, Sequence
from ctypes import c_int64
from types import MappingProxyType
from typing import NamedTuple

from minigraph.devices.cpu.kernel import (
    Linker,
    NativeCall,
    NativeKernel,
    Operands,
    Place,
    threads_for,
)
from minigraph.devices.parts import KernelParts
from minigraph.graph import Node
from minigraph.jit.halide.source import HalideSource, halide_source, overwritten
from minigraph.jit.kernel import SHARE, SpecialisedKernel
from minigraph.jit.loops import Axis
from minigraph.jit.source import KernelSource
from minigraph.platform.signals import held

HEAD = 5  # words of the argument block before the inputs
HOST = 16  # bytes of a buffer before the address of its elements
RUN = KernelSource("""
int NAME(const int64_t *a, char **slots) {
  int (*const run)(void **) = (int (*)(void **))a[1];
  const int64_t *parts = a + 5 + 3 * a[2];
  for (const int64_t *at = a + 5; at < parts; at += 3)
    ((char **)at[0])[2] = slots[at[1]] + at[2];
  #pragma omp parallel for num_threads(a[0]) if (a[0] > 1) schedule(static)
  for (int64_t i = 0; i < a[4]; i++) {
    const int64_t *part = parts + i * (1 + 3 * a[3]);
    for (int64_t k = 0; k < a[3]; k++) {
      const int64_t *at = part + 1 + 3 * k;
      ((char **)at[0])[2] = slots[at[1]] + at[2];
    }
    run((void **)part[0]);
  }
  return 0;
}
""")
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


@functools.cache
def _pool(threads: int) -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(threads, "minigraph-halide")


os.register_at_fork(after_in_child=_pool.cache_clear)


def run(block: int, slots: int) -> int:
    """Do in Python what RUN does."""
    threads, function, inputs, outputs, parts = (c_int64 * HEAD).from_address(block)
    of_inputs, of_part = 3 * inputs, 1 + 3 * outputs
    words = (c_int64 * (HEAD + of_inputs + parts * of_part)).from_address(block)[HEAD:]

    def place(buffers: Sequence[int]) -> None:
        for buffer, slot, offset in zip(buffers[::3], buffers[1::3], buffers[2::3], strict=True):
            base = c_int64.from_address(slots + 8 * slot).value
            c_int64.from_address(buffer + HOST).value = base + offset

    place(words[:of_inputs])
    calls = []
    for i in range(of_inputs, len(words), of_part):
        place(words[i + 1 : i + of_part])
        calls.append(words[i])
    kernel = FUNCTION(function)
    if threads == 1:
        return int(any(kernel(each) for each in calls))
    with held():  # else a part might still be written when the call has ended
        others = [_pool(threads - 1).submit(kernel, each) for each in calls[1:]]
        return int(any([kernel(calls[0]), *(other.result() for other in others)]))


# What a pipeline writes: axes, their strides in bytes, the bytes of an element, and the place.
Output = tuple[list[int], list[int], int, Place]


class HalidePart(NamedTuple):
    """A kernel of Halide, and which of a node's operands it has.

    offset   bytes by which its only output begins later than the node's does
    scratch  bytes of the scratch memory that others have before it
    """

    source: HalideSource
    kernel: SpecialisedKernel
    threads: int
    ins: slice
    outs: slice
    offset: int = 0
    scratch: int = 0

    @property
    def scratch_bytes(self) -> int:
        """The bytes that it keeps the results of reductions in."""
        return 8 * len(self.source.totals) * self.kernel.nest.count * self.kernel.pattern.lanes

    def block(self, function: int, operands: Operands, linker: Linker) -> list[int]:
        nest, axes = self.kernel.nest, self._axes()
        inputs: list[int] = []
        for k, place in enumerate(operands.inputs[self.ins]):
            order = self._order(per_unit=False)
            dimensions = [(0, axes[a][0], axes[a][1][k] // nest.sizes[k]) for a in order]
            inputs += [_buffer(linker, dimensions), *place]
        numbers = [0, *self.kernel.constants, *(n for n, _ in nest.loops)]
        held = linker.keep(numbers)
        fixed = [*inputs[::3], *(held + 8 * i for i in range(len(numbers)))]
        outputs = [*self._totals(operands.scratch), *self._results(operands.outputs[self.outs])]
        parts: list[int] = []
        divided, ranges = self._ranges(axes)
        for begin, end in ranges:
            words: list[int] = []
            for order, strides, size, (slot, at) in outputs:
                dimensions = []
                for a, stride in zip(order, strides, strict=True):
                    first, past = (begin, end) if a == divided else (0, axes[a][0])
                    dimensions.append((first, past - first, stride // size))
                    at += first * stride
                words += [_buffer(linker, dimensions), slot, at]
            parts += [linker.keep([*fixed, *words[::3]]), *words]
        threads = min(self.threads, len(ranges))
        return [threads, function, len(inputs) // 3, len(outputs), len(ranges), *inputs, *parts]

    def _totals(self, scratch: Place) -> Iterator[Output]:
        """Yield the results of reductions, which follow one another in the scratch memory."""
        axes, order = self._axes(), self._order(per_unit=True)
        slot, at = scratch[0], scratch[1] + self.scratch
        for size in self.source.totals:
            extents = [axes[a][0] for a in order]
            steps = itertools.accumulate(extents, operator.mul, initial=size)
            yield order, [*steps][:-1], size, (slot, at)
            at += 8 * math.prod(extents)

    def _results(self, places: Sequence[Place]) -> Iterator[Output]:
        axes, pattern, sizes = self._axes(), self.kernel.pattern, self.kernel.nest.sizes
        for k in self.source.results:
            slot, at = places[k - pattern.inputs]
            order = self._order(pattern.stores[k - pattern.inputs].per_unit)
            yield order, [axes[a][1][k] for a in order], sizes[k], (slot, at + self.offset)

    def _axes(self) -> list[Axis]:
        nest = self.kernel.nest
        units = nest.units if self.source.units else ()
        lanes = (nest.lanes,) if self.kernel.pattern.lanes > 1 else ()
        return [*units, *nest.loops, *lanes]

    def _order(self, per_unit: bool) -> list[int]:
        """The axes of an operand as the pipeline has them, the innermost first."""
        first, last = self.source.units, self.source.units + self.source.loops
        loops = range(0) if per_unit else range(first, last)
        lanes = range(last, last + (self.kernel.pattern.lanes > 1))
        return self.source.order(range(first), loops, lanes)

    def _ranges(self, axes: Sequence[Axis]) -> tuple[int, list[tuple[int, int]]]:
        """Return the axis that threads divide among themselves, and the range of each."""
        shared = range(self.source.units or self.source.loops)
        longest = max(shared, key=lambda a: axes[a][0])
        extent, _ = axes[longest]
        least = SHARE if longest == self._order(per_unit=False)[0] else 1
        count = min(self.threads, -(-extent // least))
        ends = [-(-extent * i // (count * least)) * least for i in range(count)]
        return longest, [*itertools.pairwise([*ends, extent])]


def _buffer(linker: Linker, dimensions: Sequence[tuple[int, int, int]]) -> int:
    """Return the address of a halide_buffer_t; dimensions are (first, extent, stride)."""
    words = []
    for first, extent, stride in dimensions:
        words += [extent << 32 | first, stride & 0xFFFFFFFF]
    return linker.keep([0, 0, 0, 0, len(dimensions) << 32, linker.keep(words), 0])


class HalideKernel(NativeKernel):
    """Calls of Halide's kernels, one after the other."""

    maker = "halide"
    substitutes = MappingProxyType({RUN: run})

    def __init__(
        self,
        node: Node,
        calls: Sequence[HalidePart],
        strided: Sequence[bool],
        inplace: Sequence[Sequence[int]],
    ) -> None:
        scratch = max(each.scratch + each.scratch_bytes for each in calls)
        super().__init__(node, (), scratch, strided, inplace)
        self.calls_of_parts = calls
        self.sources = [*dict.fromkeys(each.source for each in calls)]

    @property
    def texts(self) -> Sequence[KernelSource]:
        return [*self.sources, RUN]

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        return [
            linker.call(RUN, each.block(linker.address(each.source), operands, linker))
            for each in self.calls_of_parts
        ]


def halide_kernel(
    node: Node, generated: KernelParts, most: int, strided: Sequence[bool]
) -> HalideKernel:
    """Return the kernel for `node`; NotFusible where Halide cannot compute it."""
    calls: list[HalidePart] = []
    inplace = [set[int]() for _ in node.inputs]
    scratch = 0
    for part in generated.parts:
        source = halide_source(part.kernel)
        nest = part.kernel.nest
        threads = threads_for(nest.count * nest.length * part.kernel.pattern.lanes, most)
        place = (part.ins, part.outs, part.offset, scratch)
        calls.append(HalidePart(source, part.kernel, threads, *place))
        scratch += calls[-1].scratch_bytes
        first = part.outs.start or 0
        own = range(len(node.inputs))[part.ins]
        for i, outputs in zip(own, overwritten(part.kernel, source.delayed), strict=True):
            inplace[i].update(first + k for k in outputs)
    allowed = zip(generated.inplace, inplace, strict=True)
    both = [tuple(k for k in outputs if k in safe) for outputs, safe in allowed]
    return HalideKernel(node, calls, strided, both)

"""Kernels between conversions: of operands into another type or layout, and of results back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from minigraph.devices.cpu.kernel import (
    CpuKernel,
    Linker,
    NativeCall,
    Operands,
    calls_of,
    preparations_of,
    texts_of,
)
from minigraph.graph import Spec
from minigraph.jit.source import KernelSource
from minigraph.program import Kernel
from minigraph.program.steps import round_up


class Conversion(NamedTuple):
    """A kernel that converts an operand, and the spec of what the kernel inside reads or writes."""

    kernel: Kernel
    spec: Spec


class ConvertedKernel(CpuKernel):
    """Conversions of the inputs, a kernel that reads them, and its results converted back.

    before   for each input its conversion; None where it is read as it is
    inside   computes the results from these
    after    for each result its conversion; None where `inside` writes it
    how      what is converted, as reports say after the algorithm
    strided  for each input whether it need not be contiguous
    """

    def __init__(
        self,
        before: Sequence[Conversion | None],
        inside: Kernel,
        after: Sequence[Conversion | None],
        how: str,
        strided: Sequence[bool] = (),
    ) -> None:
        self.before = before
        self.inside = inside
        self.after = after
        self.maker = inside.maker
        self.algorithm = f"{inside.algorithm} {how}".strip()
        self.strided = strided
        self.refuses = inside.refuses
        self.threads = inside.threads
        self.preparations = preparations_of(inside)
        assert all(before[i] is None for i in self.preparations), "these are read as they are"
        every = [*before, *after]
        sizes = [0 if each is None else round_up(each.spec.nbytes) for each in every]
        self.offsets = [*itertools.accumulate(sizes, initial=0)]
        self.scratch = self.offsets[-1] + max(kernel.scratch for kernel in self._kernels())

    @property
    def texts(self) -> Sequence[KernelSource]:
        return [text for kernel in self._kernels() for text in texts_of(kernel)]

    def _kernels(self) -> list[Kernel]:
        return [self.inside, *(each.kernel for each in (*self.before, *self.after) if each)]

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        slot, start = operands.scratch
        given = [*operands.inputs, *operands.outputs]
        every = [*self.before, *self.after]
        places = [
            place if each is None else (slot, start + offset)
            for place, each, offset in zip(given, every, self.offsets, strict=False)
        ]
        count, rest = len(self.before), (slot, start + self.offsets[-1])
        first: list[NativeCall] = []
        last: list[NativeCall] = []
        for i, each in enumerate(every):
            if each is not None:
                pair = (given[i], places[i]) if i < count else (places[i], given[i])
                moved = Operands(pair[:1], pair[1:], rest)
                (first if i < count else last).extend(calls_of(each.kernel, moved, linker))
        inner = Operands(places[:count], places[count:], rest, operands.prepared)
        return [*first, *calls_of(self.inside, inner, linker), *last]

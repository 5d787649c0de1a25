"""Kernels of C text, their calls and argument blocks; and kernels made of two."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minigraph.devices.reference import NumpyKernel
from minigraph.graph import Array, Node
from minigraph.jit.source import KernelSource
from minigraph.program import Kernel

Place = tuple[int, int]  # slot and offset in bytes
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


@dataclass(frozen=True)
class KernelCall:
    """A kernel's text, and its argument block once the places of its operands are known.

    block(inputs, outputs, scratch)
    """

    source: KernelSource
    block: Callable[[Sequence[Place], Sequence[Place], Place], list[int]]


class NativeKernel:
    """One or a few calls of C functions."""

    alignment = 1

    def __init__(
        self,
        node: Node,
        calls: Sequence[KernelCall],
        scratch: int = 0,
        strided: Sequence[bool] = (),
        inplace: Sequence[Sequence[int]] = (),
        refuses: bool = False,
        name: str = "c",
    ) -> None:
        self.name = name
        self.calls = calls
        self.scratch = scratch
        self.strided: Sequence[bool] = strided or (False,) * len(node.inputs)
        self.inplace = inplace or ((),) * len(node.inputs)
        self.refuses = refuses
        self.meaning = NumpyKernel(node)

    @property
    def sources(self) -> Sequence[tuple[str, str]]:
        found = dict.fromkeys(call.source for call in self.calls)
        return [(s.name, s.kernel) for s in found]

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Compute in NumPy: where the compiler failed."""
        self.meaning.run(inputs, outputs, scratch)


class TogetherKernel(NativeKernel):
    """Calls that do not depend on each other; threads take one after the other."""

    def __init__(
        self,
        node: Node,
        calls: Sequence[KernelCall],
        threads: int,
        inplace: Sequence[Sequence[int]],
    ) -> None:
        super().__init__(node, calls, 0, (True,) * len(node.inputs), inplace)
        self.threads = threads


class SequenceKernel:
    """A kernel, and one that then changes its only output in place.

    first  computes the output
    then   has the output for its input and for its output
    """

    def __init__(self, first: Kernel, then: Kernel) -> None:
        self.first = first
        self.then = then
        self.name = f"{first.name} + {then.name}"
        self.sources = [*first.sources, *then.sources]
        self.scratch = max(first.scratch, then.scratch)
        self.alignment = max(first.alignment, then.alignment)
        self.strided = first.strided
        self.inplace = first.inplace
        self.refuses = first.refuses or then.refuses

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        self.first.run(inputs, outputs, scratch)
        self.then.run(outputs, outputs, scratch)


def call(text: str, *values: int) -> KernelCall:
    """Return a call whose argument block is `values`, then slot and offset of each operand."""

    def block(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        return [*values, *(v for place in (*ins, *outs) for v in place)]

    return KernelCall(KernelSource(text), block)


def threads_for(elements: int, threads: int) -> int:
    """Return how many threads are worth it."""
    return threads if elements >= THREADED else 1

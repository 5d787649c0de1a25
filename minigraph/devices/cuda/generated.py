"""Generated kernels on a CUDA device: the launches that compute a node."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence

from minigraph.devices.cuda.kernel import MOST_WORDS, Addresses, CudaKernel, Launch
from minigraph.devices.cuda.template import written_kernel
from minigraph.devices.parts import KernelPart, kernel_parts
from minigraph.graph import Node, Shape
from minigraph.jit.cuda.geometry import LaunchRun, geometry
from minigraph.jit.cuda.text import text, together
from minigraph.jit.cuda.thread import THREADS
from minigraph.jit.cuda.walk import walk, words
from minigraph.jit.expression import c_type
from minigraph.jit.source import KernelSource

PROCESSORS = 132  # of an H100 or H200
FILL = "    ((%(T)s *)mg_global(a.w[%(y)d]))[e] = %(value)s;\n"


class _WalkedPart:
    """A generated kernel, how threads walk over its axes, and the launches that they take."""

    def __init__(self, part: KernelPart, processors: int) -> None:
        self.part = part
        self.walk, self.nest = _walk(part.kernel)
        self.runs, self.scratch = geometry(self.walk, self.nest, processors)

    def words(
        self, run: LaunchRun, inputs: Addresses, outputs: Addresses, scratch: int
    ) -> list[int]:
        part = self.part
        operands = [*inputs[part.ins], *(y + part.offset for y in outputs[part.outs])]
        operands = [*map(operator.add, operands, part.kernel.shifts)]
        constants = part.kernel.constants
        return words(self.walk, self.nest, constants, run.options, operands, scratch)

    def launches(self) -> list[Launch]:
        support, whole = text(self.walk)
        source = KernelSource(whole, support)
        return [
            Launch(source, (run.blocks, 1, 1), (THREADS, 1, 1), functools.partial(self.words, run))
            for run in self.runs
        ]


def generated_kernel(
    node: Node, strides: Sequence[Shape], processors: int = PROCESSORS
) -> CudaKernel | None:
    """Return the kernel of `node`, whose inputs have these strides; None if no pattern fits.

    processors  multiprocessors of the device
    """
    made = kernel_parts(node, strides)
    if made is None:
        return None
    parts = [_WalkedPart(part, processors) for part in made.parts]
    # A kernel whose sums are split over many blocks has launches of its own.
    alone = [launch for part in parts if len(part.runs) > 1 for launch in part.launches()]
    whole = _together([part for part in parts if len(part.runs) == 1])
    filled: Sequence[Launch] = []
    if made.fill:
        fill = {"T": c_type(node.dtype), "y": len(node.inputs), "value": made.fill}
        filled = written_kernel(node, FILL, fill, node.size, ()).launches
    scratch = max((part.scratch for part in parts), default=0)
    readable = (True,) * len(strides)
    return CudaKernel(node, [*filled, *alone, *whole], scratch, readable, made.inplace)


_walk = functools.lru_cache(4096)(walk)


def _together(parts: Sequence[_WalkedPart]) -> list[Launch]:
    """As few launches as hold independent kernels, each of which takes one."""
    made: list[Launch] = []
    waiting: list[_WalkedPart] = []
    size = 1
    for part in sorted(parts, key=lambda part: text(part.walk)):
        if size + part.walk.words + 2 > MOST_WORDS:
            made.append(_launch(waiting))
            waiting, size = [], 1
        waiting.append(part)
        size += part.walk.words + 2
    return [*made, *([_launch(waiting)] if waiting else [])]


def _launch(parts: Sequence[_WalkedPart]) -> Launch:
    """One launch of independent kernels, those of one text side by side."""
    if len(parts) == 1:
        return parts[0].launches()[0]
    groups = [list(same) for _, same in itertools.groupby(parts, lambda part: text(part.walk))]
    support, whole = together([same[0].walk for same in groups], [*map(len, groups)])
    runs = [part.runs[0] for part in parts]
    blocks = list(itertools.accumulate((run.blocks for run in runs), initial=0))

    def arguments(inputs: Addresses, outputs: Addresses, scratch: int) -> list[int]:
        each = [
            part.words(run, inputs, outputs, scratch) for part, run in zip(parts, runs, strict=True)
        ]
        begins = itertools.accumulate(map(len, each[:-1]), initial=2 * len(parts) + 1)
        return [*blocks, *begins, *itertools.chain.from_iterable(each)]

    return Launch(KernelSource(whole, support), (blocks[-1], 1, 1), (THREADS, 1, 1), arguments)

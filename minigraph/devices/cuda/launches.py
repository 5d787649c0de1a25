"""Which launches of generated kernels compute a node."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minigraph.devices.cuda.launch import Launch
from minigraph.devices.placement import placements
from minigraph.graph import Copy, Node, Op, Shape, Spec
from minigraph.jit.cuda.geometry import MOST_BLOCKS, Geometry, LaunchRun, geometry
from minigraph.jit.cuda.text import text, together
from minigraph.jit.cuda.thread import THREADS
from minigraph.jit.cuda.walk import Walk, walk, words
from minigraph.jit.domain import Unfit
from minigraph.jit.expression import c_type, literal
from minigraph.jit.fused import Fused, Together, meaning
from minigraph.jit.kernel import SpecialisedKernel, specialise
from minigraph.jit.loops import LoopNest
from minigraph.jit.source import KernelSource
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.reduction import Reduction
from minigraph.ops.shape import Concat, Pad, Reshape

MOST_WORDS = 4000  # of an argument: 32,764 bytes are allowed


@dataclass(frozen=True)
class Launches:
    """What computes a node, in order.

    scratch  bytes of memory that they need while they run
    inplace  for each input which outputs may overwrite it
    """

    launches: list[Launch]
    scratch: int
    inplace: Sequence[Sequence[int]]


@dataclass(frozen=True)
class _Part:
    """A generated kernel and which of the node's operands it has.

    offset  bytes by which its only output begins later than the node's does
    """

    kernel: SpecialisedKernel
    walk: Walk
    layout: LoopNest
    ins: slice
    outs: slice
    offset: int = 0

    @functools.cached_property
    def geometry(self) -> Geometry:
        return geometry(self.walk, self.layout)

    def words(
        self, run: LaunchRun, inputs: Sequence[int], outputs: Sequence[int], scratch: int
    ) -> list[int]:
        operands = [*inputs[self.ins], *(y + self.offset for y in outputs[self.outs])]
        return words(self.walk, self.layout, self.kernel.constants, run.options, operands, scratch)


def launches(node: Node, strides: Sequence[Shape]) -> Launches | None:
    """Return the launches for `node`, whose inputs have these strides; None if no pattern fits."""
    specs = [x.spec for x in node.inputs]
    if not any(s.size for s in node.specs):
        return Launches([], 0, ((),) * len(specs))
    if isinstance(node.op, Together):
        return _gathered(node, strides)
    if isinstance(node.op, Pad | Concat):
        return _copies(node, strides)
    op = Copy() if isinstance(node.op, Reshape) else node.op  # of what is not contiguous
    if not (isinstance(op, Elementwise | Copy | Reduction | Fused) or op.composed):
        return None
    part = _part(op, specs, strides, 0, 0)
    if part is None:
        return None
    return Launches(_alone(part), part.geometry.scratch, part.kernel.inplace)


@functools.lru_cache(4096)
def _specialised(
    op: Op, inputs: tuple[Spec, ...], strides: tuple[Shape, ...], target: Shape | None
) -> tuple[SpecialisedKernel, Walk, LoopNest] | None:
    try:
        kernel = specialise(meaning(op, inputs), strides, None if target is None else (target,))
    except Unfit:
        return None
    return kernel, *walk(kernel)


def _part(
    op: Op,
    inputs: Sequence[Spec],
    strides: Sequence[Shape],
    first_in: int,
    first_out: int,
    target: tuple[Shape, int] | None = None,
) -> _Part | None:
    """Return the kernel of an op whose operands are those of the node from the first ones on.

    target  strides, and the offset, of the only output, where it is part of a larger array
    """
    to, offset = target or (None, 0)
    found = _specialised(op, tuple(inputs), tuple(strides), to)
    if found is None:
        return None
    kernel, walked, layout = found
    ins = slice(first_in, first_in + len(inputs))
    outs = slice(first_out, first_out + len(kernel.pattern.stores))
    return _Part(kernel, walked, layout, ins, outs, offset)


def _alone(part: _Part) -> list[Launch]:
    """The launches of one kernel."""
    support, whole = text(part.walk)
    source = KernelSource(whole, support)
    return [
        Launch(source, (run.blocks, 1, 1), (THREADS, 1, 1), 0, functools.partial(part.words, run))
        for run in part.geometry.runs
    ]


def _together(parts: Sequence[_Part]) -> list[Launch]:
    """As few launches as hold independent kernels, each of which takes one."""
    made: list[Launch] = []
    waiting: list[_Part] = []
    size = 1
    for part in sorted(parts, key=lambda part: text(part.walk)):
        if size + part.walk.words + 2 > MOST_WORDS:
            made.append(_launch(waiting))
            waiting, size = [], 1
        waiting.append(part)
        size += part.walk.words + 2
    return [*made, *([_launch(waiting)] if waiting else [])]


def _launch(parts: Sequence[_Part]) -> Launch:
    """One launch of independent kernels, those of one text side by side."""
    if len(parts) == 1:
        return _alone(parts[0])[0]
    groups = [list(same) for _, same in itertools.groupby(parts, lambda part: text(part.walk))]
    support, whole = together([same[0].walk for same in groups], [*map(len, groups)])
    runs = [part.geometry.runs[0] for part in parts]
    blocks = list(itertools.accumulate((run.blocks for run in runs), initial=0))

    def arguments(inputs: Sequence[int], outputs: Sequence[int], scratch: int) -> list[int]:
        each = [
            part.words(run, inputs, outputs, scratch) for part, run in zip(parts, runs, strict=True)
        ]
        begins = itertools.accumulate(map(len, each[:-1]), initial=2 * len(parts) + 1)
        return [*blocks, *begins, *itertools.chain.from_iterable(each)]

    return Launch(KernelSource(whole, support), (blocks[-1], 1, 1), (THREADS, 1, 1), 0, arguments)


def _gathered(node: Node, strides: Sequence[Shape]) -> Launches | None:
    """Independent small ops; one whose sums are split over many blocks has launches of its own."""
    assert isinstance(node.op, Together)
    parts: list[_Part] = []
    inplace: list[tuple[int, ...]] = []
    first_in = first_out = 0
    for op, group in node.op.groups(node.inputs):
        last = first_in + len(group)
        part = _part(op, [x.spec for x in group], strides[first_in:last], first_in, first_out)
        if part is None:
            return None
        parts.append(part)
        inplace += [tuple(first_out + i for i in outs) for outs in part.kernel.inplace]
        first_in, first_out = last, part.outs.stop
    split = [part for part in parts if len(part.geometry.runs) > 1]
    whole = _together([part for part in parts if len(part.geometry.runs) == 1])
    made = [*itertools.chain.from_iterable(map(_alone, split)), *whole]
    return Launches(made, max((part.geometry.scratch for part in split), default=0), inplace)


# ---------------------------------------------------------------- ops made of copies


def _copies(node: Node, strides: Sequence[Shape]) -> Launches | None:
    """A concatenation or padding: copies into parts of the output."""
    filled = [_fill(node)] if isinstance(node.op, Pad) else []
    targets = placements(node)
    parts: list[_Part] = []
    for i, (x, s, target) in enumerate(zip(node.inputs, strides, targets, strict=True)):
        if not x.size:
            continue
        part = _part(Copy(), [x.spec], [s], i, 0, target)
        if part is None:
            return None
        parts.append(part)
    return Launches([*filled, *_together(parts)], 0, ((),) * len(node.inputs))


_FILL = """
struct NAME_args { long long w[2]; };
extern "C" __global__ void NAME(const __grid_constant__ NAME_args a) {
  %(T)s *const y = (%(T)s *)mg_global(a.w[0]);
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < a.w[1];
       i += gridDim.x * (int64_t)blockDim.x)
    y[i] = %(value)s;
}
"""


def _fill(node: Node) -> Launch:
    assert isinstance(node.op, Pad)
    value = literal(np.array(node.op.value).astype(node.dtype)[()])
    source = KernelSource(_FILL % {"T": c_type(node.dtype), "value": value})
    size = node.size
    blocks = min(-(-size // THREADS), MOST_BLOCKS)
    return Launch(
        source, (blocks, 1, 1), (THREADS, 1, 1), 0, lambda _, outputs, scratch: [outputs[0], size]
    )

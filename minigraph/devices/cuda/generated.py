"""Generated kernels on a CUDA device: the launches that compute a node, and their threads."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

from minigraph.devices.cuda.kernel import MAX_ARGUMENT_WORDS, Addresses, CudaKernel, Launch
from minigraph.devices.parts import KernelPart, kernel_parts
from minigraph.graph import Node, Shape
from minigraph.jit.cuda.text import cuda_source, horizontal_source
from minigraph.jit.cuda.thread import THREADS
from minigraph.jit.cuda.thread_mapping import ThreadMapping, map_to_threads, words
from minigraph.jit.loops import LoopNest

DEFAULT_PROCESSORS = 132  # of an H100 or H200
MAX_BLOCKS = 1 << 16  # blocks of a map: they fill any device, and threads loop over the rest
BLOCKS_PER_PROCESSOR = 8  # blocks that fill a multiprocessor: 2048 threads
MAP_ROUNDS = 3  # rounds in which a multiprocessor runs its blocks of columns without sums
SUM_ROUNDS = 1  # rounds with sums: each further block has partial sums that must be combined
WIDTHS = (32, 16, 8)  # threads along x of a block of columns
MIN_GROUPS = 8  # groups of a thread, at least, if a unit is split
COMBINED = 2  # partial results that a thread combines, if enough threads exist


class LaunchRun(NamedTuple):
    """A launch: its number of blocks of THREADS threads, and the options after `aligned`."""

    blocks: int
    options: tuple[int, ...]


class _MappedPart:
    """A generated kernel, the mapping of its axes to threads, and its launches."""

    def __init__(self, part: KernelPart, processors: int) -> None:
        self.part = part
        self.mapping, self.nest = _map_to_threads(part.kernel)
        self.source = cuda_source(self.mapping)
        self.runs, self.scratch = _geometry(self.mapping, self.nest, processors)

    def words(
        self, run: LaunchRun, inputs: Addresses, outputs: Addresses, scratch: int
    ) -> list[int]:
        part = self.part
        operands = [*inputs[part.ins], *(y + part.offset for y in outputs[part.outs])]
        operands = [*map(operator.add, operands, part.kernel.shifts)]
        constants = part.kernel.constants
        return words(self.mapping, self.nest, constants, run.options, operands, scratch)

    def launches(self) -> list[Launch]:
        block = (THREADS, 1, 1)
        return [
            Launch(self.source, (run.blocks, 1, 1), block, functools.partial(self.words, run))
            for run in self.runs
        ]


def generated_kernel(
    node: Node, strides: Sequence[Shape], processors: int = DEFAULT_PROCESSORS
) -> CudaKernel | None:
    """Return the kernel of `node`, whose inputs have these strides; None if no pattern fits.

    processors  multiprocessors of the device
    """
    plan = kernel_parts(node, strides)
    if plan is None:
        return None
    parts = [_MappedPart(part, processors) for part in plan.parts]
    # A kernel whose sums are split over many blocks has separate launches.
    first = parts[0].launches() if plan.ordered else []
    others = parts[1:] if plan.ordered else parts
    split = [launch for part in others if len(part.runs) > 1 for launch in part.launches()]
    shared = _shared_launches([part for part in others if len(part.runs) == 1])
    scratch = max((part.scratch for part in parts), default=0)
    readable = (True,) * len(strides)
    return CudaKernel(node, [*first, *split, *shared], scratch, readable, plan.inplace)


_map_to_threads = functools.lru_cache(4096)(map_to_threads)


def _shared_launches(parts: Sequence[_MappedPart]) -> list[Launch]:
    """Return the fewest launches for independent kernels, each of which fits into one launch."""
    launches: list[Launch] = []
    pending: list[_MappedPart] = []
    size = 1
    for part in sorted(parts, key=lambda part: (part.source.support, part.source.text)):
        if size + part.mapping.words + 2 > MAX_ARGUMENT_WORDS:
            launches.append(_launch(pending))
            pending, size = [], 1
        pending.append(part)
        size += part.mapping.words + 2
    return [*launches, *([_launch(pending)] if pending else [])]


def _launch(parts: Sequence[_MappedPart]) -> Launch:
    """Return one launch of independent kernels, grouped by their text."""
    if len(parts) == 1:
        return parts[0].launches()[0]
    groups = [list(group) for _, group in itertools.groupby(parts, lambda part: part.source)]
    source = horizontal_source([group[0].mapping for group in groups], [*map(len, groups)])
    runs = [part.runs[0] for part in parts]
    blocks = list(itertools.accumulate((run.blocks for run in runs), initial=0))

    def arguments(inputs: Addresses, outputs: Addresses, scratch: int) -> list[int]:
        pairs = zip(parts, runs, strict=True)
        part_words = [part.words(run, inputs, outputs, scratch) for part, run in pairs]
        offsets = itertools.accumulate(map(len, part_words[:-1]), initial=2 * len(parts) + 1)
        return [*blocks, *offsets, *itertools.chain.from_iterable(part_words)]

    return Launch(source, (blocks[-1], 1, 1), (THREADS, 1, 1), arguments)


# ---------------------------------------------------------------- numbers of threads and blocks


def _geometry(
    mapping: ThreadMapping, nest: LoopNest, processors: int
) -> tuple[list[LaunchRun], int]:
    """Return the launches of a kernel, in order, and the bytes of scratch memory that they share.

    processors  multiprocessors of the device
    """
    across = _groups_across(mapping, nest)
    if not mapping.shared:
        length, _ = (*nest.units, *nest.loops)[mapping.innermost]
        blocks = -(-(nest.length // length * across) // THREADS)
        return [LaunchRun(min(blocks, MAX_BLOCKS), ())], 0
    rounds = SUM_ROUNDS if mapping.reduces else MAP_ROUNDS
    wanted_blocks = processors * (mapping.resident * rounds or BLOCKS_PER_PROCESSOR)
    width, groups = _width(mapping, nest, wanted_blocks)
    unit_threads = THREADS // width if mapping.column else width  # of a unit or column
    most_splits = groups // (unit_threads * MIN_GROUPS)
    splits = min(max(1, wanted_blocks // _blocks(mapping, nest, width)), most_splits)
    stages = mapping.pattern.stages
    runs: list[LaunchRun] = []

    def launch(
        width: int, shares: int, stage: int, combine: bool = False, write: bool = False
    ) -> None:
        options = (width, nest.count, splits, stage, combine, write)
        runs.append(LaunchRun(_blocks(mapping, nest, width) * shares, tuple(map(int, options))))

    if not mapping.reduces:
        splits = max(splits, 1)
        launch(width, splits, -1)
        return runs, 0
    if splits <= stages:  # a split stage takes two launches
        splits = 1
        launch(width, 1, -1, write=True)
        return runs, 0
    writes = any(store.per_unit for store in mapping.pattern.stores)
    combiners = min(_next_power_of_2(-(-splits // COMBINED)), THREADS)
    combine_width = THREADS // combiners if mapping.column else combiners
    for stage in range(stages):
        launch(width, splits, stage)
        if mapping.pattern.reduced(stage):
            launch(combine_width, 1, stage, combine=True, write=writes and stage == stages - 1)
    if writes and not mapping.pattern.reduced(stages - 1):
        launch(combine_width, 1, stages, combine=True, write=True)
    return runs, 8 * nest.count * len(mapping.pattern.reductions) * (splits + 1)


def _width(mapping: ThreadMapping, nest: LoopNest, wanted_blocks: int) -> tuple[int, int]:
    """Return the option `threads`, and the number of groups of a unit or column."""
    across = _groups_across(mapping, nest)
    if mapping.column:
        groups = nest.length
        # Threads beyond the last column are idle: 18 groups take three blocks of 8, not one of 32.
        fewest = min(WIDTHS, key=lambda width: -(-across // width) * width)
        most = _next_power_of_2(across)
        width = max(min(fewest, most), THREADS // min(_next_power_of_2(groups), THREADS))
        return min(width, most, THREADS), groups
    groups = math.prod(n for n, _ in nest.loops[:-1]) * across
    fewest, most = 1, THREADS
    if nest.count * groups >= 4 * wanted_blocks * THREADS:
        fewest, most = _next_power_of_2(-(-groups // 4)), 32
    width = max(fewest, min(_next_power_of_2(groups), most))
    return min(width, THREADS), groups


def _blocks(mapping: ThreadMapping, nest: LoopNest, width: int) -> int:
    """Return the number of blocks for all units, with `width` threads along x."""
    if mapping.column:
        rows = math.prod(n for n, _ in nest.units[:-1])
        return rows * -(-_groups_across(mapping, nest) // width)
    return -(-nest.count // (THREADS // width))


def _groups_across(mapping: ThreadMapping, nest: LoopNest) -> int:
    return -(-(*nest.units, *nest.loops)[mapping.innermost][0] // mapping.group)


def _next_power_of_2(n: int) -> int:
    """Return the smallest power of 2 that is at least n."""
    return 1 << (n - 1).bit_length()

"""How many threads run a kernel, and the options of each of its launches."""

from __future__ import annotations

import math
from typing import NamedTuple

from minigraph.jit.cuda.thread import THREADS
from minigraph.jit.cuda.walk import Walk
from minigraph.jit.loops import LoopNest

MOST_BLOCKS = 1 << 16  # of a map: enough for any device, and each thread has more to do
PER_PROCESSOR = 8  # blocks that fill a multiprocessor: 2048 threads
ROUNDS = 3  # in which a multiprocessor runs its blocks that stay in columns
SUM_ROUNDS = 1  # the same where they sum: each block more has sums to be joined
SIDES = (32, 16, 8)  # how many threads of a block may take columns side by side
LONG = 8  # groups that a thread has at least where a unit is split
JOINED = 2  # partial results that a thread joins, where there are threads enough


class LaunchRun(NamedTuple):
    """One launch: its blocks of THREADS threads, and the options but for the first."""

    blocks: int
    options: tuple[int, ...]


def geometry(walk: Walk, nest: LoopNest, processors: int) -> tuple[list[LaunchRun], int]:
    """Return how a kernel is run on a device with so many multiprocessors.

    That is its launches, in order, and the bytes of scratch memory that they share.
    """
    across = _groups_across(walk, nest)
    if not walk.shared:
        length, _ = (*nest.units, *nest.loops)[walk.innermost]
        blocks = -(-(nest.length // length * across) // THREADS)
        return [LaunchRun(min(blocks, MOST_BLOCKS), ())], 0
    rounds = SUM_ROUNDS if walk.reduces else ROUNDS
    busy = processors * (walk.resident * rounds or PER_PROCESSOR)
    side, groups = _side(walk, nest, busy)
    walkers = THREADS // side if walk.column else side  # threads that share a unit, or a column
    splits = min(max(1, busy // _blocks(walk, nest, side)), groups // (walkers * LONG))
    stages = walk.pattern.stages
    runs: list[LaunchRun] = []

    def launch(side: int, shares: int, stage: int, join: bool = False, write: bool = False) -> None:
        options = (side, nest.count, splits, stage, join, write)
        runs.append(LaunchRun(_blocks(walk, nest, side) * shares, tuple(map(int, options))))

    if not walk.reduces:
        splits = max(splits, 1)
        launch(side, splits, -1)
        return runs, 0
    if splits <= stages:  # each stage more takes two launches more
        splits = 1
        launch(side, 1, -1, write=True)
        return runs, 0
    writes = any(store.per_unit for store in walk.pattern.stores)
    joiners = min(_power(-(-splits // JOINED)), THREADS)
    joining = THREADS // joiners if walk.column else joiners
    for stage in range(stages):
        launch(side, splits, stage)
        if walk.pattern.reduced(stage):
            launch(joining, 1, stage, join=True, write=writes and stage == stages - 1)
    if writes and not walk.pattern.reduced(stages - 1):
        launch(joining, 1, stages, join=True, write=True)
    return runs, 8 * nest.count * len(walk.pattern.reductions) * (splits + 1)


def _side(walk: Walk, nest: LoopNest, busy: int) -> tuple[int, int]:
    """Return the option `threads`, and how many groups a unit, or a column, has."""
    across = _groups_across(walk, nest)
    if walk.column:
        groups = nest.length
        # Threads beside the last column do nothing: 18 groups take three times 8, not once 32.
        fewest = min(SIDES, key=lambda side: -(-across // side) * side)
        side = max(min(fewest, _power(across)), THREADS // min(_power(groups), THREADS))
        return min(side, _power(across), THREADS), groups
    groups = math.prod(n for n, _ in nest.loops[:-1]) * across
    many = nest.count * groups >= 4 * busy * THREADS
    side = max(_power(-(-groups // 4)) if many else 1, min(_power(groups), 32 if many else THREADS))
    return min(side, THREADS), groups


def _blocks(walk: Walk, nest: LoopNest, side: int) -> int:
    """Return how many blocks all units take, with so many threads side by side."""
    if walk.column:
        rows = math.prod(n for n, _ in nest.units[:-1])
        return rows * -(-_groups_across(walk, nest) // side)
    return -(-nest.count // (THREADS // side))


def _groups_across(walk: Walk, nest: LoopNest) -> int:
    return -(-(*nest.units, *nest.loops)[walk.innermost][0] // walk.group)


def _power(n: int) -> int:
    """Return the least power of 2 that is not below n."""
    return 1 << (n - 1).bit_length()

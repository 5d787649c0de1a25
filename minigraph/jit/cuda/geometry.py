"""How many threads run a kernel, and the options of each of its launches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from minigraph.jit.cuda.thread import THREADS
from minigraph.jit.cuda.walk import Walk
from minigraph.jit.loops import LoopNest

MOST_BLOCKS = 1 << 16  # of a map: enough for any device, and each thread has more to do
BUSY = 512  # blocks that keep a device busy
LONG = 8  # groups that a thread has at least where a unit is split


@dataclass(frozen=True)
class LaunchRun:
    """One launch: its blocks of THREADS threads, and the options but for the first."""

    blocks: int
    options: tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """The launches of a kernel, in order, and the bytes of scratch memory that they share."""

    runs: tuple[LaunchRun, ...]
    scratch: int = 0


def geometry(walk: Walk, layout: LoopNest) -> Geometry:
    """Return how a kernel is run."""
    if not walk.reduces:
        groups = layout.length // _extent(walk, layout) * -(-_extent(walk, layout) // walk.group)
        blocks = -(-groups // THREADS)
        return Geometry((LaunchRun(min(blocks, MOST_BLOCKS), (groups,)),))
    side, groups, blocks = _sides(walk, layout)
    walkers = THREADS // side if walk.column else side  # threads that share a unit, or a column
    splits = min(-(-BUSY // blocks), groups // (walkers * LONG))
    if splits <= walk.pattern.stages:  # each stage more takes two launches more
        whole = (groups, side, layout.count, groups, 1, 1, -1, False, True)
        return Geometry((LaunchRun(blocks, tuple(map(int, whole))),))
    share = -(-groups // splits)
    splits = -(-groups // share)
    runs = []

    def launch(shares: int, stage: int, join: bool = False, write: bool = False) -> None:
        options = (groups, side, layout.count, share, shares, splits, stage, join, write)
        runs.append(LaunchRun(blocks * shares, tuple(map(int, options))))

    stages = walk.pattern.stages
    writes = any(store.per_unit for store in walk.pattern.stores)
    for stage in range(stages):
        launch(splits, stage)
        if walk.pattern.reduced(stage):
            launch(1, stage, join=True, write=writes and stage == stages - 1)
    if writes and not walk.pattern.reduced(stages - 1):
        launch(1, stages, write=True)
    kept = layout.count * len(walk.pattern.reductions)
    return Geometry(tuple(runs), 8 * kept * (splits + 1))


def _sides(walk: Walk, layout: LoopNest) -> tuple[int, int, int]:
    """Return the option `threads`, how many groups a unit has, and the blocks for all units."""
    across = -(-_extent(walk, layout) // walk.group)
    if walk.column:
        groups = layout.length
        side = max(min(32, _power(across)), THREADS // min(_power(groups), THREADS))
        side = min(side, _power(across), THREADS)
        outer = math.prod(n for n, _ in layout.units[:-1])
        return side, groups, outer * -(-across // side)
    groups = math.prod(n for n, _ in layout.loops[:-1]) * across
    many = layout.count * groups >= 4 * BUSY * THREADS
    side = max(_power(-(-groups // 4)) if many else 1, min(_power(groups), 32 if many else THREADS))
    side = min(side, THREADS)
    return side, groups, -(-layout.count // (THREADS // side))


def _extent(walk: Walk, layout: LoopNest) -> int:
    return (*layout.units, *layout.loops)[walk.innermost][0]


def _power(n: int) -> int:
    """Return the least power of 2 that is not below n."""
    return 1 << (n - 1).bit_length()

"""Which passes each level runs, and running them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from minigraph.graph import Graph
from minigraph.passes.batch_norm import fuse_batch_norm
from minigraph.passes.convolution import fold_batch_norm, fuse_activation, fuse_bias
from minigraph.passes.cross_entropy import fuse_cross_entropy
from minigraph.passes.expansion import take_apart
from minigraph.passes.fast_math import relax
from minigraph.passes.fma import fuse_fma
from minigraph.passes.fusion import fuse_elementwise, fuse_kernels
from minigraph.passes.gathering import gather_updates
from minigraph.passes.notes import Notes
from minigraph.passes.sharing import share_common
from minigraph.passes.simplification import simplify
from minigraph.report import PassRecord

Pass = Callable[[Graph, Notes], Graph]

# What each level adds to the one before.  Library fusion looks for ops that FMA fusion takes away.
LEVELS: tuple[tuple[Pass, ...], ...] = (
    (),
    (share_common, simplify, share_common),
    (fuse_bias, fold_batch_norm, fuse_batch_norm, fuse_cross_entropy),
    (),
)
FAST_MATH: tuple[Pass, ...] = (relax, share_common)  # after level 1, where the option allows it
# What graph_opt.jit adds after that: nothing, elementwise kernels, kernels with reductions.
JIT: tuple[tuple[Pass, ...], ...] = (
    (),
    (fuse_elementwise, gather_updates),
    (fuse_kernels, gather_updates),
)


def pipeline(level: int, fast_math: bool, jit: int = 0) -> list[Pass]:
    """Return the passes of a level, in order."""
    passes: list[Pass] = []
    for i, added in enumerate(LEVELS[: level + 1]):
        passes += added
        if i == 1 and fast_math:
            passes += FAST_MATH
    if jit == 2:
        passes.append(take_apart)
    if level >= 2:
        passes.append(fuse_fma)
    passes += JIT[jit]
    if level >= 2:
        passes.append(fuse_activation)  # what no generated kernel has taken
    return passes


def optimize(graph: Graph, passes: Sequence[Pass]) -> list[tuple[Graph, PassRecord]]:
    """Return the graph after each pass, checked, and what the pass did."""
    stages: list[tuple[Graph, PassRecord]] = []
    for rewrite in passes:
        start = time.perf_counter()
        before, notes = len(graph.order), Notes()
        old, graph = graph, rewrite(graph, notes)
        if graph is not old:
            graph.check()
        seconds = time.perf_counter() - start
        name = rewrite.__name__
        record = PassRecord(name, before, len(graph.order), seconds, dict(notes.fired), notes.stops)
        stages.append((graph, record))
    return stages

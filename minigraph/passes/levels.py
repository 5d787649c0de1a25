"""Which passes each level runs, and running them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from minigraph.graph import Graph
from minigraph.passes.notes import Notes
from minigraph.report import PassRecord

Pass = Callable[[Graph, Notes], Graph]

LEVELS: tuple[tuple[Pass, ...], ...] = ((), (), (), ())  # what each level adds to the one before
FAST_MATH: tuple[Pass, ...] = ()  # after those of level 1, where the option allows them


def pipeline(level: int, fast_math: bool) -> list[Pass]:
    """Return the passes of a level, in order."""
    passes: list[Pass] = []
    for i, added in enumerate(LEVELS[: level + 1]):
        passes += added
        if i == 1 and fast_math:
            passes += FAST_MATH
    return passes


def optimize(graph: Graph, passes: Sequence[Pass]) -> list[tuple[Graph, PassRecord]]:
    """Return the graph after each pass, checked, and what the pass did."""
    stages: list[tuple[Graph, PassRecord]] = []
    for rewrite in passes:
        start = time.perf_counter()
        before, notes = len(graph.order), Notes()
        graph = rewrite(graph, notes)
        graph.check()
        seconds = time.perf_counter() - start
        name = rewrite.__name__
        record = PassRecord(name, before, len(graph.order), seconds, dict(notes.fired))
        stages.append((graph, record))
    return stages

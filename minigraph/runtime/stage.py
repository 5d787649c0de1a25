"""What the stages of a compile share: each is timed, and the garbage collector waits."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

from minigraph.messages import telling


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector off: a graph is many objects, of which none is garbage yet.

    What is left of them after the pause the collector looks at, so a pause should outlast them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the time spent inside to `seconds[stage]`, and say what goes on where it is long."""
    start = time.perf_counter()
    try:
        with telling(f"compiling: {stage}"):
            yield
    finally:
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start

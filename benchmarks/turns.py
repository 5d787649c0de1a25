"""Sides that take turns, so that other programs and the processor's clock disturb all alike."""

import time
from collections.abc import Callable, Sequence

import numpy as np

WARM_UP = 2  # turns, in which memory is touched for the first time


def take_turns(sides: Sequence[Callable[[], object]], turns: int) -> np.ndarray:
    """Return what the sides found, [turns, sides, ...]; every second turn goes backwards."""
    rows = []
    for turn in range(WARM_UP + turns):
        order = range(len(sides))[:: -1 if turn % 2 else 1]
        found = {side: sides[side]() for side in order}
        rows.append([found[side] for side in range(len(sides))])
    return np.array(rows[WARM_UP:])


def seconds(call: Callable[..., object], *given: object) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    call(*given)
    return time.perf_counter() - start


def median_ms(taken: np.ndarray) -> str:
    """Return the median of seconds and its quartiles, in milliseconds: "12.3 (11.8, 14)"."""
    each = np.quantile(taken, [0.25, 0.5, 0.75]) * 1e3
    low, median, high = (f"{x:.0f}" if x >= 100 else f"{x:.3g}" for x in each)
    return f"{median} ({low}, {high})"

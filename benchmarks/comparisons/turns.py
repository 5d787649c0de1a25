"""Sides that take turns, so that other programs and the processor's clock disturb all alike."""

from collections.abc import Callable, Sequence

import numpy as np

WARM_UP = 2  # turns, in which memory is touched for the first time


def take_turns(sides: Sequence[Callable[[], float]], turns: int) -> np.ndarray:
    """Return what the sides gave, [sides, turns]; every second turn goes backwards."""
    rows = []
    for turn in range(WARM_UP + turns):
        order = range(len(sides))[:: -1 if turn % 2 else 1]
        found = {side: sides[side]() for side in order}
        rows.append([found[side] for side in range(len(sides))])
    return np.array(rows[WARM_UP:]).T


def median_ms(seconds: np.ndarray) -> str:
    """Return the median of seconds and its quartiles, in milliseconds: "12.3 (11.8, 14)"."""
    each = np.quantile(seconds, [0.25, 0.5, 0.75]) * 1e3
    low, median, high = (f"{x:.0f}" if x >= 100 else f"{x:.3g}" for x in each)
    return f"{median} ({low}, {high})"


def print_row(*cells: str) -> None:
    """Print a row of a table as soon as it is known."""
    print(f"| {' | '.join(cells)} |", flush=True)


def print_header(*names: str) -> None:
    """Print the first lines of a table."""
    print_row(*names)
    print_row(*["---"] * len(names))

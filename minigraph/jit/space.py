"""Iteration spaces: axes merged where all operands allow it, and what is innermost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Space:
    """Extents from the outermost axis to the innermost, and each operand's strides in bytes."""

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


def collapse(extents: Sequence[int], strides: Sequence[Sequence[int]]) -> Space:
    """Drop axes of length 1 and merge neighbours that every operand walks as one.

    >>> collapse((2, 3, 4), [(48, 16, 4), (0, 0, 4)])
    Space(extents=(6, 4), strides=((16, 4), (0, 4)))
    """
    kept: list[tuple[int, tuple[int, ...]]] = []
    for axis, n in enumerate(extents):
        steps = tuple(s[axis] for s in strides)
        if n == 1:
            continue
        if kept and all(
            outer == inner * n for outer, inner in zip(kept[-1][1], steps, strict=True)
        ):
            kept[-1] = (kept[-1][0] * n, steps)
        else:
            kept.append((n, steps))
    if not kept:
        kept.append((1, tuple(0 for _ in strides)))
    by_operand = zip(*(steps for _, steps in kept), strict=True)
    return Space(tuple(n for n, _ in kept), tuple(by_operand))


def access(stride: int, itemsize: int) -> str:
    """Return how an operand runs along the innermost axis: "unit", "same" or "strided"."""
    return "same" if stride == 0 else "unit" if stride == itemsize else "strided"

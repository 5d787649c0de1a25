"""Which pixels of a convolution meet which taps of its window, along one axis."""

from __future__ import annotations

import itertools
from typing import NamedTuple


class PixelSet(NamedTuple):
    """Pixels of a result, along one axis, that meet the same taps.

    first, step, size    where they are, and how many
    tap, tap_step, taps  that they meet
    start, start_step    which pixel the first one reads with the first tap, and from tap to tap
    """

    first: int
    step: int
    size: int
    tap: int
    tap_step: int
    taps: int
    start: int
    start_step: int


class Axis(NamedTuple):
    """One axis of a convolution: sizes of its images before and behind, and its window."""

    before: int
    behind: int
    taps: int
    stride: int
    padding: int
    dilation: int

    def meeting(self, pixel: int) -> list[tuple[int, int]]:
        """Return the taps that a pixel behind meets, and the pixels before that it meets there."""
        first = pixel * self.stride - self.padding
        places = [(tap, first + tap * self.dilation) for tap in range(self.taps)]
        return [(tap, place) for tap, place in places if 0 <= place < self.before]

    def met(self, pixel: int) -> list[tuple[int, int]]:
        """Return the taps by which a pixel before is met, and the pixels behind that meet it."""
        spans = [(tap, pixel + self.padding - tap * self.dilation) for tap in range(self.taps)]
        return [
            (tap, span // self.stride)
            for tap, span in spans
            if span % self.stride == 0 and 0 <= span // self.stride < self.behind
        ]

    def sets(self, backward: bool) -> list[PixelSet]:
        """Return all pixels of the result: those behind, or those before for the gradient."""
        period = self.stride if backward else 1
        size = self.before if backward else self.behind
        found = []
        for residue in range(min(period, size)):
            pixels = range(residue, size, period)
            each = ((p, self.met(p) if backward else self.meeting(p)) for p in pixels)
            for taps, group in itertools.groupby(each, lambda pair: [tap for tap, _ in pair[1]]):
                members = list(group)
                first, met = members[0]
                steps = (met[1][0] - met[0][0], met[1][1] - met[0][1]) if len(met) > 1 else (0, 0)
                tap, start = met[0] if met else (0, 0)
                spaced = first, period, len(members)
                found.append(PixelSet(*spaced, tap, steps[0], len(taps), start, steps[1]))
        return found

"""The schedule of a run: it ends when it was promised to end, and what does not fit is left out.

A plan counts seconds of a machine that does nothing else.  How much slower this one is shows in
the parts that have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PRIOR = (
    0.1  # this share of the plan counts as if it had gone as planned: the first parts say little
)
MOMENT = 10.0  # seconds that each part may take at least, however little was planned for it
SLOW = 1.5  # a part may take so many times as long as is expected, whatever time is left

Progress = Callable[[str, float], None]  # what is done now, and the seconds left of the whole run
Clock = Callable[[], float]


class Schedule:
    """The time of a run, shared among its cases in proportion to what is planned for them.

    end    when the run has to end
    until  when the present case has to end, at most `end`
    """

    def __init__(
        self, planned: float, promised: float, progress: Progress, clock: Clock = time.monotonic
    ) -> None:
        self._clock = clock
        self._progress = progress
        self._planned = planned
        self._passed = 0.0  # planned seconds of what has ended or was left out
        self._after = planned  # the same at the end of the present case
        self._counted = self._took = PRIOR * planned
        self.end = self.until = clock() + promised

    @property
    def now(self) -> float:
        return self._clock()

    @property
    def pace(self) -> float:
        """How long a part takes, relative to what was planned for it."""
        return self._took / self._counted

    @property
    def left(self) -> float:
        """The seconds until the run ends: less than promised where it is faster than planned."""
        return max(0.0, min(self.end - self.now, self.pace * (self._planned - self._passed)))

    def fits(self, planned: float) -> bool:
        """Return whether the run may go on with something that is planned to take so long."""
        return self.now + self.pace * planned <= self.end

    def patience(self, planned: float) -> float:
        """Return the seconds after which a part has to be given up."""
        usual = max(MOMENT, SLOW * self.pace * planned)
        return max(usual, self.until - self.now, (self.end - self.now) / 2)

    @contextmanager
    def case(self, planned: float) -> Iterator[None]:
        """A context for a case; it gets its share of the time that is left."""
        rest = max(planned, self._planned - self._passed)
        self.until = self.now + (self.end - self.now) * planned / rest
        self._after = self._passed + planned
        try:
            yield
        finally:
            self._passed = self._after

    @contextmanager
    def part(self, what: str, planned: float) -> Iterator[None]:
        """A context for a part of a case, which shows how fast the machine is."""
        self._progress(what, self.left)
        begin = self.now
        try:
            yield
        finally:
            self._took += self.now - begin
            self._counted += planned
            self._passed = min(self._after, self._passed + planned)

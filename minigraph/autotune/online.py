"""Measuring between the calls of a function, a little each time, in the memory of its results.

Between two calls nobody needs a function's arena.  So what candidates read and write lies there, as
far as it fits.  A call waits for a share of the time of the one before; where a single piece of
work takes longer, the shares of several calls are saved for it.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from minigraph.autotune import background
from minigraph.autotune.candidate import (
    Candidate,
    NotCompiled,
    Problem,
    Run,
    Runner,
    Workbench,
)
from minigraph.autotune.lent import LentBench
from minigraph.autotune.measurement import ProblemTable
from minigraph.autotune.prediction import family_of, predicted
from minigraph.autotune.reference import by_heuristic, by_numpy
from minigraph.autotune.session import Session, warn_of_memory
from minigraph.autotune.tuner import measuring
from minigraph.graph import Array

HOPELESS = 2.0  # expected to be so many times as slow as the fastest in its layouts: not run
SHARE = 0.4  # of the time of a call: so long may be measured before the next one,
LEAST = 5e-3  # or so many seconds: what is shorter nobody notices
MOMENT = 2e-3  # seconds to wait for a kernel, which takes longer only if it has to be compiled


def share_of(call: float) -> float:
    """Return the seconds for which a call may wait after one that took so many."""
    return max(SHARE * call, LEAST)


class OnlineTuner:
    """What measures the waiting problems of a session, in pieces.

    The candidates of a problem are compared with the one that a heuristic chooses, which computes
    the results of the calls until then, instead of with NumPy, which may take longer than a call.
    """

    def __init__(self, session: Session, clock: Callable[[], float] = time.perf_counter) -> None:
        self._session = session
        self._clock = clock
        self._problem: Problem | None = None  # that is being measured
        self._bench: WhileCallsGoOn | None = None  # where it is
        self._pieces: Generator[float, None, ProblemTable] | None = None  # of that work
        self._expected = 0.0  # seconds of the next piece
        self._saved = 0.0  # seconds that were left because the next piece takes longer

    def advance(self, call: float, memory: Array) -> bool:
        """Measure for a while; return whether all is measured, or the budget is spent.

        call    seconds that the last call took
        memory  bytes that nobody else uses meanwhile, the same each time; what they hold is lost
                now, and may be lost before the next time
        """
        session, start, used = self._session, self._clock(), 0.0
        seconds = share_of(call)
        if self._expected == math.inf:  # what was being compiled may be done
            self._expected = 0.0
        if self._bench:
            self._bench.lend(memory)
        with session.alone() as alone:
            while alone and session.waiting and session.left > used:
                if not self._begun(memory):
                    continue
                allowed = seconds if used or self._expected <= seconds else seconds + self._saved
                if used + self._expected > allowed:
                    break
                self._work()
                used = self._clock() - start
        session.spent += used
        too_long = seconds < self._expected < math.inf
        self._saved = self._saved + seconds - used if too_long else 0.0
        if session.left <= 0:
            session.waiting.clear()
        return not session.waiting

    def _turn(self, problem: Problem) -> tuple[bool, float, str]:
        """Return what orders problems: the smallest of each family, then the others, largest first.

        What is hopeless for a small problem is not run for a larger one, where it would take long.
        """
        known = bool(self._session.measured(family_of(problem.subject)))
        return known, -problem.work if known else problem.work, problem.subject

    def _begun(self, memory: Array) -> bool:
        """Begin with the next problem, unless one is being measured or it is known by now."""
        if self._pieces is None:
            session = self._session
            problem = min(session.waiting.values(), key=self._turn)
            if session.known_by_now(problem):
                del session.waiting[problem.subject]
                return False
            self._bench = bench = WhileCallsGoOn(problem.workbench, memory)
            self._problem = problem
            self._pieces = measuring(
                replace(problem, workbench=bench),
                *(self._clock, _skipped(session, problem)),
                functools.partial(_unchecked, problem),
            )
            self._expected = next(self._pieces)
        return True

    def _work(self) -> None:
        """Do the next piece of work, and learn what comes out in the end."""
        assert self._pieces is not None and self._problem is not None
        try:
            self._expected = next(self._pieces)
            return
        except StopIteration as end:
            self._session.learn(self._problem, end.value)
        except MemoryError as error:
            warn_of_memory(self._problem, error)
        self._pieces = None
        self._expected = 0.0
        del self._session.waiting[self._problem.subject]


def _unchecked(of: Problem, problem: Problem, xs: Sequence[Array]) -> tuple[Array, ...]:
    """Return what the choice of a problem's heuristic computes from inputs that are lent; or NumPy.

    of  the same problem with the workbench that waits until a kernel is compiled
    """
    return by_heuristic(problem, of.workbench, xs) or by_numpy(problem, xs)


def _skipped(session: Session, problem: Problem) -> Callable[[Candidate], str]:
    """Return what says why a candidate is not tried: it is hopeless by this function's other sizes.

    Hopeless beside the others in its layouts, each of which has a candidate that is tried.
    """
    expected = predicted(problem.subject, session.measured(family_of(problem.subject)))
    timed = {m.key: m.seconds for m in expected.measurements if m.seconds} if expected else {}
    best: dict[tuple[str, ...], float] = {}
    for (_, layouts), seconds in timed.items():
        best[layouts] = min(seconds, best.get(layouts, math.inf))

    def why(candidate: Candidate) -> str:
        ratio = timed.get(candidate.key, 0.0) / best.get(candidate.layouts, math.inf)
        said = f"not tried: {ratio:.1f} times as slow as the fastest for other sizes"
        return said if ratio > HOPELESS else ""

    return why


class WhileCallsGoOn(LentBench):
    """A workbench in the memory of a function's results; kernels are compiled in another thread."""

    def __init__(self, bench: Workbench, memory: Array) -> None:
        super().__init__(bench, memory)
        self._made: dict[tuple[Runner, int], Future[Run]] = {}

    def compile(self, kernels: Iterable[Runner]) -> None:
        """Leave it to `runner`."""

    def runner(self, kernel: Runner) -> Run:
        key = kernel, os.getpid()  # a forked child has no thread of its parent's
        if key not in self._made:
            make = functools.partial(self.bench.runner, kernel)
            self._made[key] = background.begun(make, "minigraph compiles a candidate")
        try:
            return self._made[key].result(MOMENT)
        except TimeoutError:
            raise NotCompiled from None

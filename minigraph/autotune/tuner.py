"""Measure the candidates of a problem: first whether they are right, then how fast they are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from minigraph.autotune.candidate import Problem
from minigraph.autotune.data import Data
from minigraph.autotune.measurement import ProblemTable
from minigraph.autotune.trial import ROUNDS, Trial
from minigraph.cache.counters import tuning_counters


def measure(
    problem: Problem, deadline: float | None, clock: Callable[[], float] = time.perf_counter
) -> ProblemTable | None:
    """Return what was measured of each candidate; None if the deadline came first.

    Each runs once on random data, and is checked.  Those that were right and not hopelessly slow
    take turns, so that a machine that is busy for a while is so for all of them, until they have
    lost.
    """
    end = math.inf if deadline is None else deadline
    with problem.workbench.current():
        if clock() >= end:
            return None
        data = Data(problem)
        trials = []
        for candidate in problem.candidates(None):
            if clock() >= end:
                return None
            trials.append(Trial(candidate, problem.workbench))
            trials[-1].check(data, clock)
        fastest = min((trial.first for trial in trials if not trial.error), default=0.0)
        for trial in trials:
            trial.plan(fastest)
        for turn in range(ROUNDS[1]):
            best: dict[tuple[str, ...], float] = {}
            for trial in trials:
                if not trial.error:
                    layouts = trial.candidate.layouts
                    best[layouts] = min(trial.shortest, best.get(layouts, math.inf))
            least = min(best.values(), default=0.0)
            for trial in trials:
                if turn < trial.turns and not trial.has_lost(best[trial.candidate.layouts], least):
                    if clock() >= end:
                        return None
                    trial.time(clock)
    measurements = tuple(trial.measurement() for trial in trials)
    tuning_counters.count("measurements", sum(m.seconds is not None for m in measurements))
    makers = {trial.candidate.key: trial.candidate.make for trial in trials}
    return ProblemTable(problem.subject, measurements, makers)

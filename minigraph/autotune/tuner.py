"""Measure the candidates of a problem: first whether they are right, then how fast they are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator

from minigraph.autotune.candidate import Candidate, Problem
from minigraph.autotune.data import Data
from minigraph.autotune.measurement import ProblemTable
from minigraph.autotune.reference import Reference, checked
from minigraph.autotune.trial import ROUNDS, Trial
from minigraph.cache.counters import tuning_counters

# How long a piece of work may take of which nothing is known yet.
SPEED = 2e10  # operations a second
COPIED = 1e9  # bytes a second that are written, arranged, run over and compared
CAUTION = 2.0  # a candidate may take so many times as long as the fastest so far


def measure(
    problem: Problem, deadline: float | None, clock: Callable[[], float] = time.perf_counter
) -> ProblemTable | None:
    """Return what was measured of each candidate; None if the deadline came first."""
    pieces = measuring(problem, clock)
    with problem.workbench.current():
        while deadline is None or clock() < deadline:
            try:
                next(pieces)
            except StopIteration as end:
                measured: ProblemTable = end.value
                return measured
    return None


def measuring(
    problem: Problem,
    clock: Callable[[], float],
    skipped: Callable[[Candidate], str] = lambda candidate: "",
    reference: Reference = checked,
) -> Generator[float, None, ProblemTable]:
    """Measure the candidates piece by piece; yield before each how many seconds it may take.

    skipped    returns why a candidate is not even run, or an empty string
    reference  returns what has to come out of inputs

    inf is yielded while a kernel is being compiled elsewhere.

    Each runs once on random data, and is checked.  Those that were right and not hopelessly slow
    take turns, so that a machine that is busy for a while is so for all of them, until they have
    lost.
    """
    trials = []
    shortest = problem.work / SPEED
    moved = sum(spec.nbytes for spec in (*problem.inputs, *problem.results)) / COPIED
    yield shortest + moved
    used = [Data(problem, reference)]  # another one if that is lost
    for candidate in problem.candidates(None):
        trials.append(Trial(candidate, problem.workbench, skipped(candidate)))
        yield CAUTION * shortest + moved
        while not trials[-1].made():
            yield math.inf
        if used[-1].lost:
            used.append(Data(problem, reference))
        trials[-1].check(used[-1], clock)
        first = [trial.first for trial in trials if not trial.error]
        shortest = min(first, default=shortest)
    for trial in trials:
        trial.plan(min(first, default=0.0))
    for turn in range(ROUNDS[1]):
        best: dict[tuple[str, ...], float] = {}
        for trial in trials:
            if not trial.error:
                layouts = trial.candidate.layouts
                best[layouts] = min(trial.shortest, best.get(layouts, math.inf))
        least = min(best.values(), default=0.0)
        for trial in trials:
            if turn < trial.turns and not trial.has_lost(best[trial.candidate.layouts], least):
                yield trial.group
                for data in used:
                    if data.lost:
                        data.refill()
                trial.time(clock)
    measurements = tuple(trial.measurement() for trial in trials)
    tuning_counters.count("measurements", sum(m.seconds is not None for m in measurements))
    makers = {trial.candidate.key: trial.candidate.make for trial in trials}
    return ProblemTable(problem.subject, measurements, makers)

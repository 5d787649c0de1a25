"""Measure the candidates of a problem: check their results, then time them in turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable

from msgspec import structs

from minigraph.autotune.candidate import Candidate, Layouts, Problem, Workbench
from minigraph.autotune.data import TrialData
from minigraph.autotune.measurement import MEASURED, Measurement, ProblemTable
from minigraph.cache.counters import tuning_counters

# A candidate is not timed if its first run, and a second one, take more than MAX_SLOWDOWN times the
# shortest first run, and more than SCHEDULER_DELAY seconds: a shorter run may have waited for the
# scheduler's next tick (4 ms), and a single longer one for other programs.
MAX_SLOWDOWN, SCHEDULER_DELAY = 3.0, 6e-3
GROUP_SECONDS = 0.5e-3  # shorter runs are timed in groups of this length
LONG_RUN = 0.3  # seconds; if the checked run takes longer, it is the only sample
TIMING_SECONDS = 0.03  # seconds of timed runs of a candidate, within ROUNDS
ROUNDS = (3, 7)  # minimum and maximum of timed runs or groups
MIN_RUN_SECONDS = 1e-7  # the shortest run that is assumed
# After n timed runs a candidate drops out if it is slower than the fastest in its layouts by
# DROP_MARGIN/n, or slower than the fastest in any layouts by a factor of DROP_FACTOR.
DROP_MARGIN = 0.5
DROP_FACTOR = 1.5


class Trial:
    """The measuring of one candidate.

    first_seconds  seconds of the checked run
    rounds         number of timed runs, or groups of them, after the checked run
    calls          runs of a group
    """

    def __init__(self, candidate: Candidate, bench: Workbench) -> None:
        self.candidate = candidate
        self.bench = bench
        self.error = ""
        self.workspace = 0
        self.first_seconds = 0.0
        self.rounds = 0
        self.calls = 1
        self.samples: list[float] = []
        self._run: Callable[[], None] = lambda: None

    def check(self, data: TrialData, clock: Callable[[], float]) -> None:
        """Run the kernel once; note its error or its seconds."""
        try:
            kernel = self.candidate.kernel
            run = self.bench.runner(kernel)
            workspace = self.workspace = kernel.scratch
            inputs, outputs = data.operands(self.candidate)
            data.reserve(self.workspace)
        except Exception as error:  # from any library
            self._record_error(error)
            return
        results = [*zip(data.outputs.values(), outputs, strict=True)]
        for block, y in results:
            block.clear(y.nbytes)
        data.scratch.clear(self.workspace)
        arrays = [x.array for x in inputs], outputs
        # Look `data.scratch` up in each run: a later candidate may replace it by a larger one.  Do
        # not refer to `self`: the cycle would keep the data until the garbage collector runs.
        self._run = lambda: run(*arrays, data.scratch.array[:workspace])
        try:
            self.first_seconds = self.bench.seconds(self._run, 1, clock)
        except Exception as error:
            self._record_error(error)
        if any(block.is_changed() for block in inputs):
            self.error = self.error or "wrote to its inputs or around them"
            data.restore()
        intact = all(block.guards_intact(y.nbytes) for block, y in results)
        if not (intact and data.scratch.guards_intact(self.workspace)):
            self.error = self.error or "wrote outside its results and scratch"
        self.error = self.error or data.check_results(self.candidate)

    def plan_rounds(self, best: float, clock: Callable[[], float]) -> None:
        """Set the number of timed runs, given the shortest checked run of all candidates."""
        if self.error:
            return
        limit = max(MAX_SLOWDOWN * best, SCHEDULER_DELAY)
        if limit < self.first_seconds <= LONG_RUN:
            self.time(clock)
            if self.error:
                return
            self.first_seconds = self.shortest
            self.samples.clear()
        too_slow = self.first_seconds > limit
        if too_slow or self.first_seconds > LONG_RUN:
            self.samples.append(self.first_seconds)
            self.rounds = 0 if too_slow else 1
            return
        minimum, maximum = ROUNDS
        rounds = int(TIMING_SECONDS / max(self.first_seconds, GROUP_SECONDS))
        self.rounds = min(max(rounds, minimum), maximum)
        self.calls = math.ceil(GROUP_SECONDS / max(self.first_seconds, MIN_RUN_SECONDS))

    def drops_out(self, best: float, best_of_all: float) -> bool:
        """Return whether the candidate drops out, given the best run in its layouts and in all."""
        n = len(self.samples)
        limit = DROP_FACTOR * best_of_all
        return n > 0 and self.shortest > min((1 + DROP_MARGIN / n) * best, limit)

    @property
    def shortest(self) -> float:
        """Seconds of the shortest run, including the checked one."""
        return min(self.first_seconds, *self.samples) if self.samples else self.first_seconds

    def time(self, clock: Callable[[], float]) -> None:
        """Time one more run or group of runs."""
        try:
            self.samples.append(self.bench.seconds(self._run, self.calls, clock))
        except Exception as error:
            self._record_error(error)
            self.rounds = 0

    def _record_error(self, error: Exception) -> None:
        """Note an error of the candidate; raise an error of the memory or the device."""
        self.bench.reraise_device_error(error, self.candidate.name)
        self.error = " ".join(f"{type(error).__name__}: {error}".split())

    def measurement(self) -> Measurement:
        """Return the candidate's measurement: its shortest timed run, or its error.

        Other programs can only slow a run down, so the shortest run is the best estimate.
        """
        untimed = self.candidate.measurement(self.workspace, self.error)
        if self.error:
            return untimed
        shortest, rounds = min(self.samples), len(self.samples)
        lower = shortest  # the quartile; np.quantile would import numpy.ma, which takes 13 ms
        if rounds > 1:
            lower = statistics.quantiles(self.samples, n=4, method="inclusive")[0]
        spread = lower / shortest - 1 if shortest else 0.0
        return structs.replace(untimed, seconds=shortest, spread=spread, rounds=rounds)


def measure(
    problem: Problem,
    deadline: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
    candidates: Iterable[Candidate] | None = None,
) -> ProblemTable | None:
    """Return the measurements of candidates; None if the deadline came first.

    candidates  candidates to measure, all by default

    Each candidate runs once on random data, and its results are checked.  Then the candidates run
    in turns, so that a busy period of the machine slows all of them.  A candidate that runs out of
    memory is omitted from the table, and may be measured another time.  Raises MemoryError if every
    candidate fails and one of them lacks memory, DeviceLost if one makes the device unusable.
    """
    end = math.inf if deadline is None else deadline
    bench = problem.workbench
    with bench.current():
        if clock() >= end:
            return None
        data = TrialData(problem, bench)
        trials, memory_error = [], None
        for candidate in problem.candidates() if candidates is None else candidates:
            if clock() >= end:
                return None
            trial = Trial(candidate, bench)
            try:
                trial.check(data, clock)
                trials.append(trial)
            except MemoryError as error:
                memory_error = error
        if memory_error and all(trial.error for trial in trials):
            raise memory_error
        fastest = min((trial.first_seconds for trial in trials if not trial.error), default=0.0)
        for trial in trials:
            trial.plan_rounds(fastest, clock)
        for round_ in range(ROUNDS[1]):
            best: dict[Layouts, float] = {}
            for trial in trials:
                if not trial.error:
                    layouts = trial.candidate.layouts
                    best[layouts] = min(trial.shortest, best.get(layouts, math.inf))
            best_of_all = min(best.values(), default=0.0)
            for trial in trials:
                same_layouts = best.get(trial.candidate.layouts, math.inf)
                if round_ < trial.rounds and not trial.drops_out(same_layouts, best_of_all):
                    if clock() >= end:
                        return None
                    trial.time(clock)
    measurements = [trial.measurement() for trial in trials]
    tuning_counters.count("measurements", sum(m.seconds is not None for m in measurements))
    return ProblemTable(problem.subject, tuple(measurements), candidates is None, MEASURED)

"""Measure the candidates of a problem: first whether they are right, then how fast they are."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable

from msgspec import structs

from minigraph.autotune.candidate import Candidate, Layouts, Problem, Workbench
from minigraph.autotune.data import Data
from minigraph.autotune.measurement import MEASURED, Measurement, ProblemTable
from minigraph.cache.counters import tuning_counters

HOPELESS = 3.0  # a first run this many times as long as the shortest: no more runs,
# if it took more seconds than this.  A shorter one may have waited for a processor until the
# scheduler's next tick, of which many kernels have 250 a second.
CHEAP = 6e-3
SHORT = 0.5e-3  # seconds: shorter runs are timed in groups as long as this
LONG = 0.3  # seconds: longer runs are timed once more, and the first one counts too
ENOUGH = 0.03  # seconds of timing after which 3 rounds do
ROUNDS = (3, 7)
TICK = 1e-7  # seconds: no run is shorter
# Who is slower than the fastest in the same layouts by this share after one timed run, or an nth of
# it after n, has lost.  More runs would only tell by how much.
SLACK = 0.5
# So has who is so many times as slow as the fastest of all: other layouts rarely gain that much.
BEHIND = 1.5


class Trial:
    """A candidate that is being measured.

    first    seconds of the run that was checked
    turns    how often it is timed after that
    calls    how many runs are timed at once
    """

    def __init__(self, candidate: Candidate, bench: Workbench) -> None:
        self.candidate = candidate
        self.bench = bench
        self.error = ""
        self.workspace = 0
        self.first = 0.0
        self.turns = 0
        self.calls = 1
        self.samples: list[float] = []
        self._run: Callable[[], None] = lambda: None

    def check(self, data: Data, clock: Callable[[], float]) -> None:
        """Run the kernel once; note what is wrong, or how long it took."""
        try:
            kernel = self.candidate.kernel
            run = self.bench.runner(kernel)
            workspace = self.workspace = kernel.scratch
            inputs, outputs = data.operands(self.candidate)
            data.reserve(self.workspace)
        except Exception as error:  # of whatever library it is
            self._note(error)
            return
        rooms = [*zip(data.outputs.values(), outputs, strict=True)]
        for block, y in rooms:
            block.clear(y.nbytes)
        data.scratch.clear(self.workspace)
        arrays = [x.array for x in inputs], outputs
        # `data.scratch` is replaced as soon as a later candidate needs more.  `self` is not used: a
        # cycle would keep the data until the garbage collector runs.
        self._run = lambda: run(*arrays, data.scratch.array[:workspace])
        try:
            self.first = self.bench.seconds(self._run, 1, clock)
        except Exception as error:
            self._note(error)
        if any(block.changed() for block in inputs):
            self.error = self.error or "wrote to its inputs or around them"
            data.restore()
        whole = all(block.intact(y.nbytes) for block, y in rooms)
        if not (whole and data.scratch.intact(self.workspace)):
            self.error = self.error or "wrote outside its results and scratch"
        self.error = self.error or data.wrong(self.candidate)

    def plan(self, best: float) -> None:
        """Decide how often it is timed, given the shortest first run of all candidates."""
        if self.error:
            return
        hopeless = self.first > max(HOPELESS * best, CHEAP)
        if hopeless or self.first > LONG:
            self.samples.append(self.first)
            self.turns = 0 if hopeless else 1
            return
        fewest, most = ROUNDS
        self.turns = min(max(int(ENOUGH / max(self.first, SHORT)), fewest), most)
        self.calls = math.ceil(SHORT / max(self.first, TICK))

    def has_lost(self, best: float, best_of_all: float) -> bool:
        """Return whether it is too far behind the shortest run, of its layouts or all, to go on."""
        n = len(self.samples)
        return n > 0 and self.shortest > min((1 + SLACK / n) * best, BEHIND * best_of_all)

    @property
    def shortest(self) -> float:
        """Seconds of the shortest run, the one that was checked included."""
        return min(self.first, *self.samples) if self.samples else self.first

    def time(self, clock: Callable[[], float]) -> None:
        """Run it once more, or a group of times, and note how long that took."""
        try:
            self.samples.append(self.bench.seconds(self._run, self.calls, clock))
        except Exception as error:
            self._note(error)
            self.turns = 0

    def _note(self, error: Exception) -> None:
        """Keep an error of the candidate; raise one of memory or of the device."""
        self.bench.examine(error, self.candidate.name)
        self.error = " ".join(f"{type(error).__name__}: {error}".split())

    def measurement(self) -> Measurement:
        """Return the candidate's measurement, or its error.

        Other programs make runs longer, never shorter, so the shortest says most of the candidate.
        """
        untimed = self.candidate.measurement(self.workspace, self.error)
        if self.error:
            return untimed
        least, rounds = min(self.samples), len(self.samples)
        lower = least  # quartile; NumPy's quantile imports numpy.ma, which takes 13 ms
        if rounds > 1:
            lower = statistics.quantiles(self.samples, n=4, method="inclusive")[0]
        spread = lower / least - 1 if least else 0.0
        return structs.replace(untimed, seconds=least, spread=spread, rounds=rounds)


def measure(
    problem: Problem,
    deadline: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
    candidates: Iterable[Candidate] | None = None,
) -> ProblemTable | None:
    """Return the measurements of candidates; None if the deadline came first.

    candidates  which to measure, if not all

    Each runs once on random data, and is checked.  Those that were right and not hopelessly slow
    take turns, so that a machine that is busy for a while is so for all of them, until they have
    lost.  A candidate for which memory does not suffice is left out: it may suffice another time.
    Raises MemoryError where it suffices for none, and DeviceLost where one has spoilt the device.
    """
    end = math.inf if deadline is None else deadline
    bench = problem.workbench
    with bench.current():
        if clock() >= end:
            return None
        data = Data(problem, bench)
        trials, starved = [], None
        for candidate in problem.candidates() if candidates is None else candidates:
            if clock() >= end:
                return None
            trial = Trial(candidate, bench)
            try:
                trial.check(data, clock)
                trials.append(trial)
            except MemoryError as error:
                starved = error
        if starved and all(trial.error for trial in trials):
            raise starved
        fastest = min((trial.first for trial in trials if not trial.error), default=0.0)
        for trial in trials:
            trial.plan(fastest)
        for turn in range(ROUNDS[1]):
            best: dict[Layouts, float] = {}
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
    measurements = [trial.measurement() for trial in trials]
    tuning_counters.count("measurements", sum(m.seconds is not None for m in measurements))
    return ProblemTable(problem.subject, tuple(measurements), candidates is None, MEASURED)

"""Measure sides in turns, in concurrent processes.

The machine's speed drifts, so only times of the same run are compared, and each side gets one turn
per round.  Separate processes isolate the threads, allocators and libraries of the sides.  Threads
of some libraries poll for work after a turn, which slows the next side down, so every other round
is in reverse order.

A run has a time limit.  A slow machine runs fewer turns, then fewer sides, then fewer cases; the
results list those that were left out.
"""

from __future__ import annotations

import itertools
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from minigraph.bench.cases import PRECISIONS, Expression, ModelFile, Prediction
from minigraph.bench.networks import name_of
from minigraph.bench.plan import Plan, by_priority
from minigraph.bench.results import (
    EAGER,
    EAGER_LAST,
    FRONTEND_PREFIX,
    LEVEL_PREFIX,
    LEVELS,
    CaseResult,
    Results,
    SideResult,
)
from minigraph.bench.worker import Failure, Worker

SETTLED_TOLERANCE = 0.05  # warm-up ends when a turn is not faster than the last by more than this
WARMUP_FRACTION = 1 / 3  # maximum share of the time for turns
START_FRACTION = 3 / 4  # of a case's time; no side is started later
MIN_TURNS = 3  # of a side, if the time of the run suffices; else one
MIN_SIDES = 2  # sides that are always started, because one side alone compares nothing
MIN_TIMEOUT = 10.0  # seconds to wait for an answer

Progress = Callable[[str], None]
Clock = Callable[[], float]


class TimeLimit:
    """The time of a run, divided among its cases.

    The first cases matter most: a case gets twice the share of each later one; its unused time
    goes to the later ones.

    end       time at which the run must end
    case_end  time at which the present case should end
    """

    def __init__(self, seconds: float, cases: int, clock: Clock = time.monotonic) -> None:
        self._clock, self._cases = clock, cases
        self.end = self.case_end = clock() + seconds

    @property
    def now(self) -> float:
        return self._clock()

    def begin_case(self) -> None:
        self.case_end = self.now + (self.end - self.now) * min(1.0, 2 / (self._cases + 1))
        self._cases -= 1

    @property
    def timeout(self) -> float:
        """The seconds to wait for an answer."""
        return max(MIN_TIMEOUT, self.case_end - self.now, (self.end - self.now) / 2)


def measure_cases(
    plan: Plan,
    options: dict[str, Any],
    progress: Progress,
    save: Callable[[Results], None],
    clock: Clock = time.monotonic,
) -> Results:
    """Measure the cases within the plan's minutes; after Ctrl-C, return the results so far.

    save  is called with the results after each case, so that a later failure does not lose them
    """
    limit = TimeLimit(60.0 * plan.minutes, len(plan.models), clock)
    results = Results.begin(options)
    results.missing = plan.missing()
    try:
        caches = tempfile.TemporaryDirectory(prefix="minigraph-bench-", ignore_cleanup_errors=True)
        with caches as folder:
            for i, model in enumerate(plan.models, 1):
                position = f" ({i} of {len(plan.models)})" * (len(plan.models) > 1)
                run = CaseRun(plan, model, limit, progress, position)
                if results.cases and limit.now + MIN_TIMEOUT > limit.end:
                    results.left_out[run.result.title] = []
                    continue
                limit.begin_case()
                results.cases[name_of(model)] = run.result
                run.measure(plan.sides(model), Path(folder, name_of(model)))
                if run.left_out:
                    results.left_out[run.result.title] = run.left_out
                save(results)
    except KeyboardInterrupt:
        results.interrupted = True
    return results


class CaseRun:
    """The measurement of one case.

    result    its results so far
    workers   of the sides that have not failed
    left_out  the sides for which there was no time
    """

    def __init__(
        self, plan: Plan, model: str, limit: TimeLimit, progress: Progress, position: str = ""
    ) -> None:
        self.plan = plan
        self.subject = subject = plan.task(model).subject
        self.result = CaseResult(subject.title, subject.images)
        self.workers: dict[str, Worker] = {}
        self.left_out: list[str] = []
        self._limit = limit
        self._report, self._position = progress, position
        self._predicts = isinstance(subject, Prediction | ModelFile)

    def _progress(self, what: str) -> None:
        name, _, _ = self.result.title.partition(", ")  # the start, which fits a terminal
        self._report(f"{name}{self._position}: {what}")

    def measure(self, commands: Mapping[str, Sequence[str]], folder: Path) -> None:
        """Fill in the results; the error of a side does not stop the others."""
        limit = self._limit
        try:
            self._start_sides(commands, folder)
            compared = self._compared_sides()
            self._run_turns(limit.case_end - sum(map(self._losses_seconds, compared)))
            for name, worker in list(self.workers.items()):
                with self._recorded_failures(name):
                    side, summary = self.result.sides[name], worker.ask("summary", limit.timeout)
                    side.peak, side.p99 = summary["peak"], summary["p99"]
                    side.roofline = summary["roofline"]
            self._compare_outputs([name for name in compared if name in self.workers])
        finally:
            for worker in self.workers.values():
                worker.kill()

    def _start_sides(self, commands: Mapping[str, Sequence[str]], folder: Path) -> None:
        """Start the sides, except those for which there is no time."""
        self.result.sides = {name: SideResult() for name in commands}
        limit, first = self._limit, self._limit.now
        last = first + START_FRACTION * (limit.case_end - first)
        for i, name in enumerate(by_priority(commands)):
            start_seconds = (limit.now - first) / max(i, 1)
            if self.left_out or (i >= MIN_SIDES and limit.now + start_seconds > last):
                self.left_out.append(name)
                del self.result.sides[name]
                continue
            # Inductor passes the folder to a compiler unquoted, so the name has no spaces.
            caches = folder / re.sub(r"\W+", "-", name)
            caches.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._progress(name)
            with self._recorded_failures(name):
                self._start(name, commands[name], side_variables(self.plan, caches))
        self.workers = {name: self.workers[name] for name in commands if name in self.workers}

    def _start(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> None:
        side = self.result.sides[name]
        worker = Worker(command, variables, self._limit.timeout)
        side.cold = worker.first
        if self.plan.twice:
            worker.kill()
            worker = Worker(command, variables, self._limit.timeout)
            side.warm = worker.first
        self.workers[name] = worker

    def _run_turns(self, deadline: float) -> None:
        limit, workers = self._limit, self.workers
        begin = limit.now
        warmup: dict[str, list[float]] = {name: [] for name in workers}
        round_seconds = 0.0
        warming_up, count = True, 0
        for i in itertools.count():
            start = limit.now
            if warming_up:
                settled = all(_settled(warmup[name]) for name in workers)
                warmup_end = begin + WARMUP_FRACTION * (deadline - begin)
                warming_up = not settled and start + round_seconds <= warmup_end
            late = start + round_seconds > (deadline if count >= MIN_TURNS else limit.end)
            if not workers or count == self.plan.repeats or (count and late):
                break
            for name, worker in list(workers.items())[:: -1 if i % 2 else 1]:
                self._progress(name)
                with self._recorded_failures(name):
                    seconds = worker.ask("turn", limit.timeout)["step"]
                    times = warmup[name] if warming_up else self.result.sides[name].seconds
                    times.append(seconds)
            count += not warming_up
            round_seconds = limit.now - start
        for name, times in warmup.items():
            self.result.sides[name].warmup = len(times)

    def _compared_sides(self) -> list[str]:
        """Return the sides whose outputs are compared with those of the first.

        These are all sides of a prediction; of a training, which takes time, only PyTorch, the
        highest level and the frontends.
        """
        names = sorted(self.workers, key=lambda name: name != EAGER)
        if self._predicts:
            return names
        levels = [name for level in LEVELS if (name := f"{LEVEL_PREFIX}{level}") in names]
        if self.plan.quick or isinstance(self.subject, Expression) or not levels:
            return []
        frontends = (name for name in names if name.startswith(FRONTEND_PREFIX))
        compared = {EAGER, levels[-1], EAGER_LAST, *frontends}
        return [name for name in names if name in compared] if EAGER in names else []

    def _losses_seconds(self, name: str) -> float:
        """Return an estimate of the seconds that a side needs for its losses."""
        side = self.result.sides[name]
        return 0.0 if self._predicts else 2 * (side.warm or side.cold or 0.0)

    def _compare_outputs(self, names: Sequence[str]) -> None:
        """Fill in the differences of outputs; a side with wrong scores has failed."""
        for name in self.workers.keys() - names:
            self.workers.pop(name).kill()  # frees its memory for the others
        expected: list[float] = []
        for name in names:
            if not (self._predicts or expected or name == names[0]):
                return  # nothing to compare with
            worker, side = self.workers.pop(name), self.result.sides[name]
            self._progress(f"outputs of {name}")
            try:
                late = self._limit.now + self._losses_seconds(name) > self._limit.end
                if late and not self._predicts:
                    raise Failure("the time was up")
                outputs = worker.ask("outputs", self._limit.timeout)["outputs"]
                if None in outputs:
                    raise Failure("gives NaN or infinity")
                expected = expected or outputs
                scale = max(map(abs, expected)) if self._predicts else None
                side.difference = relative_difference(outputs, expected, scale)
                if self._predicts and side.difference > PRECISIONS[self.plan.precision].tolerance:
                    raise Failure(f"predicts other scores than {names[0]}")
            except Failure as failure:
                setattr(side, "error" if self._predicts else "losses_error", str(failure))
            finally:
                worker.kill()

    @contextmanager
    def _recorded_failures(self, name: str) -> Iterator[None]:
        try:
            yield
        except Failure as failure:
            self.result.sides[name].error = str(failure)
            if name in self.workers:
                self.workers.pop(name).kill()


def relative_difference(
    a: Sequence[float], b: Sequence[float], scale: float | None = None
) -> float:
    """Return the largest difference between two series, relative to `scale` or to b."""
    scales = np.abs(b) if scale is None else scale
    difference = np.abs(np.subtract(a, b)) / np.maximum(scales, np.finfo(np.float32).tiny)
    return float(difference.max())


def _settled(seconds: Sequence[float]) -> bool:
    """Return whether a turn was not faster than the one before."""
    return any(after >= (1 - SETTLED_TOLERANCE) * before for before, after in pairwise(seconds))


def side_variables(plan: Plan, caches: Path) -> dict[str, str]:
    folders = ("MINIGRAPH_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        **{name: value for name, value in os.environ.items() if name != "MINIGRAPH_OPTIONS"},
        **dict.fromkeys(folders, str(caches)),
        **dict.fromkeys(threads, str(plan.threads)),
        "OPENBLAS_THREAD_TIMEOUT": "4",  # threads spin for 2 ** 4 cycles, not 2 ** 28
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": plan.device.partition(":")[0],
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # else JAX reserves most of the shared GPU
    }

"""How sides are measured: in turn, in processes that all live at the same time.

The machine's speed drifts, so times are compared within one run only, and each round gives each
side one turn.  Separate processes keep the threads, allocators and libraries of the sides apart.
Threads of some libraries look for more work after a turn, which slows the next side down: every
other round is in reverse, so that it is not always the same side.

A run ends when it was promised to end.  On a machine that is slower than planned there are fewer
turns, then fewer sides, then fewer cases; the results name what was left out.
"""

from __future__ import annotations

import itertools
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from minigraph.bench.cases import PRECISIONS, PREDICTIONS, scale
from minigraph.bench.limit import variables
from minigraph.bench.own_network import name_of
from minigraph.bench.plan import MACHINE, WARMUP, Plan, by_worth
from minigraph.bench.results import EAGER, CaseResult, ProbeResult, Results, SideResult
from minigraph.bench.schedule import Clock, Progress, Schedule
from minigraph.bench.worker import Failure, Worker

SETTLED = 0.05  # a time has settled when a turn is not faster than the last by more than this
LEAST = 3  # turns of a side, if the run may take so long; else one
PAIR = 2  # sides without which a case says nothing
TIME_UP = "the time was up"


def measure_cases(
    plan: Plan,
    options: dict[str, Any],
    progress: Progress,
    keep: Callable[[Results], None],
    clock: Clock = time.monotonic,
) -> Results:
    """Measure the cases, in the time that the plan promises; Ctrl-C ends that and loses nothing.

    keep  is called with the results after each case, so that a later failure loses none of them
    """
    schedule = Schedule(plan.seconds(), plan.promised, progress, clock)
    results = Results.begin(options)
    results.missing = plan.missing()
    try:
        caches = tempfile.TemporaryDirectory(prefix="minigraph-bench-", ignore_cleanup_errors=True)
        with caches as folder:
            for model in plan.models:
                run = CaseRun(plan, model, schedule)
                with schedule.case(plan.case_seconds(model)):
                    commands = plan.sides(model)
                    if results.cases and not schedule.fits(run.least(commands)):
                        results.left_out[run.result.title] = []
                        continue
                    results.cases[name_of(model)] = run.result
                    run.measure(commands, Path(folder, name_of(model)))
                if run.left_out:
                    results.left_out[run.result.title] = run.left_out
                keep(results)
    except KeyboardInterrupt:
        results.interrupted = True
    return results


class CaseRun:
    """The measurement of one case.

    result    what it gave so far
    sides     the same by side, the probe included
    workers   of the sides that have not failed
    left_out  the sides for which there was no time
    """

    def __init__(self, plan: Plan, model: str, schedule: Schedule) -> None:
        self.plan = plan
        self.model = model
        self.subject = subject = plan.task(model).subject
        self.result = CaseResult(
            subject.title,
            subject.images,
            subject.bytes,
            subject.flops,
            {str(level): speed for level, speed in subject.published.items()},
        )
        self.sides: dict[str, SideResult] = {}
        self.workers: dict[str, Worker] = {}
        self.left_out: list[str] = []
        self._schedule = schedule
        self._turn = plan.turn_seconds(subject)

    def least(self, names: Collection[str]) -> float:
        """Return the seconds that are planned for the sides that it needs, with a turn of each."""
        return sum(map(self._start_seconds, by_worth(names)[:PAIR])) + PAIR * self._turn

    def measure(self, commands: Mapping[str, Sequence[str]], folder: Path) -> None:
        """Fill in what the sides give; a side that fails keeps its error and leaves the others."""
        try:
            self._begin(commands, folder)
            if self.model in PREDICTIONS:
                self._compare()
            self._rounds()
            for name, worker in list(self.workers.items()):
                planned = self.plan.details_seconds(name, self.subject)
                if not self._schedule.fits(planned):
                    continue
                with self._failing(name), self._part(name, planned):
                    details = worker.ask("details", self._schedule.patience(planned))
                    self.sides[name].peak = details["peak"]
                    self.sides[name].kernels = details.get("kernels", {})
                    self.sides[name].hidden = details.get("hidden")
                    self.sides[name].p99 = details.get("p99")
            self._losses(self.plan.compared(self.model, self.workers))
        finally:
            if MACHINE in self.sides and self.sides[MACHINE].error:
                self.result.sides[MACHINE] = self.sides[MACHINE]
            for worker in self.workers.values():
                worker.kill()

    def _begin(self, commands: Mapping[str, Sequence[str]], folder: Path) -> None:
        """Start the sides, except those for which there is no time."""
        self.sides = {name: SideResult() for name in commands}
        self.result.sides |= {name: side for name, side in self.sides.items() if name != MACHINE}
        worth = by_worth(commands)
        for name in worth:
            if name not in worth[:PAIR] and not self._fits(name):
                self.left_out.append(name)
                self.result.sides.pop(name, None)
                continue
            # The probe is the same for all cases, and so are its caches.
            caches = folder.parent if name == MACHINE else folder
            # Inductor passes the folder to a compiler unquoted, so the name has no spaces.
            environment = _environment(self.plan, caches / re.sub(r"\W+", "-", name))
            with self._failing(name), self._part(name, self._start_seconds(name)):
                self._start(name, commands[name], environment)
        self.workers = {name: self.workers[name] for name in commands if name in self.workers}

    def _fits(self, name: str) -> bool:
        """Return whether there is time to start one more side and to give each a few turns."""
        names = [*self.workers, name]
        turns = (LEAST + (self.model in PREDICTIONS)) * self._turn * len(names)
        ending = self.plan.ending_seconds(self.model, names)
        seconds = self._schedule.pace * (self._start_seconds(name) + turns + ending)
        return self._schedule.now + seconds <= self._schedule.until

    def _start_seconds(self, name: str) -> float:
        return self.plan.start_seconds(name, self.subject)

    def _start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a worker, after another one if both first calls are to be measured."""
        patience = self._schedule.patience(self._start_seconds(name))
        worker = Worker(command, environment, patience)
        self.sides[name].cold = worker.first
        if self.plan.twice and name != MACHINE:
            worker.kill()
            worker = Worker(command, environment, patience)
            self.sides[name].warm = worker.first
        self.workers[name] = worker

    def _compare(self) -> None:
        """Leave out the sides that predict something else than the first one does."""
        reference, expected = "", np.empty(0)
        for name in sorted(self.workers.keys() - {MACHINE}, key=lambda name: name != EAGER):
            with self._failing(name), self._part(f"scores of {name}", self._turn):
                answer = self.workers[name].ask("scores", self._schedule.patience(self._turn))
                scores = np.array(answer["scores"], float)  # null is NaN
                if not reference:
                    reference, expected = name, scores
                apart = float(abs(scores - expected).max() / abs(expected).max())
                if not apart <= PRECISIONS[self.plan.precision].tolerance:
                    raise Failure(f"predicts other scores than {reference}: {apart:.1e} apart")
                self.sides[name].apart = apart

    def _rounds(self) -> None:
        """Give each side its turns: those that warm up, then those that count."""
        schedule, workers = self._schedule, self.workers
        begin = schedule.now
        until = schedule.until - schedule.pace * self.plan.ending_seconds(self.model, workers)
        warming = {name: list[float]() for name in workers}
        expected = schedule.pace * self._turn * len(workers)  # seconds of a round
        warm, count = True, 0
        for i in itertools.count():
            start = schedule.now
            if warm:
                settled = all(_settled(warming[name]) for name in workers)
                warm = not settled and start + expected <= begin + WARMUP * (until - begin)
            late = start + expected > (until if count >= LEAST else schedule.end)
            if not workers or count == self.plan.repeats or (count and late):
                break
            for name, worker in list(workers.items())[:: -1 if i % 2 else 1]:
                with self._failing(name), self._part(name, self._turn):
                    took = worker.ask("turn", schedule.patience(self._turn))
                    if warm:
                        warming[name].append(sum(took.values()))
                        self.sides[name].warmup += 1
                    else:
                        self._count(name, took)
            count += not warm
            expected = schedule.now - start

    def _count(self, name: str, took: Mapping[str, float]) -> None:
        if name != MACHINE:
            self.sides[name].seconds.append(took["step"])
            return
        work = scale(self.plan.device).work
        for step, seconds in took.items():
            probe = self.result.machine.setdefault(step, ProbeResult(*work[step]))
            probe.seconds.append(seconds)

    def _losses(self, names: Sequence[str]) -> None:
        """Fill in the first losses; a side that fails here keeps its times."""
        schedule = self._schedule
        for name in self.workers.keys() - names:
            self.workers.pop(name).kill()  # the others may need its memory
        for name in names:
            planned = self.plan.losses_seconds(self.subject)
            worker = self.workers.pop(name)
            try:
                if not schedule.fits(planned):
                    raise Failure(TIME_UP)
                with self._part(f"losses of {name}", planned):
                    answer = worker.ask("losses", schedule.patience(planned))
                    if None in answer["losses"]:
                        raise Failure("a loss is NaN or infinite")
                    self.sides[name].losses = answer["losses"]
            except Failure as failure:
                self.sides[name].lost = str(failure)
            finally:
                worker.kill()

    def _part(self, what: str, planned: float) -> AbstractContextManager[None]:
        name, _, _ = self.result.title.partition(", ")  # a terminal has room for no more
        return self._schedule.part(f"{name}: {what}", planned)

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        """A context in which a worker may fail, which keeps its error and leaves the others."""
        try:
            yield
        except Failure as failure:
            self.sides[name].error = str(failure)
            if name in self.workers:
                self.workers.pop(name).kill()


def _settled(seconds: Sequence[float]) -> bool:
    """Return whether a side no longer becomes faster: on a noisy machine some turns are slower."""
    return any(after >= (1 - SETTLED) * before for before, after in pairwise(seconds))


def _environment(plan: Plan, folder: Path) -> dict[str, str]:
    """Return the environment variables of a side: its own caches, its threads, its limit."""
    caches = ("MINIGRAPH_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        **{name: value for name, value in os.environ.items() if name != "MINIGRAPH_OPTIONS"},
        **dict.fromkeys(caches, str(folder)),
        **dict.fromkeys(threads, str(plan.threads)),
        **variables(),
        "OPENBLAS_THREAD_TIMEOUT": "4",  # threads spin for 2 ** 4 cycles, not 2 ** 28
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": plan.device.partition(":")[0],
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # else JAX takes most of the shared GPU
    }

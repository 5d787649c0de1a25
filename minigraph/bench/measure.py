"""The measurement: the sides of a case in turn, all of them alive, one of them computing.

The machine's speed drifts, so figures are compared within one run only, and every round gives each
side one turn.  A process of its own keeps one side's threads, allocator and libraries from the
others'.  Some libraries' threads go on looking for work after a turn, at the cost of whose turn is
next: every other round is in reverse, so that it is not always the same side.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minigraph.bench.cost import losses_cost, start_cost, turn_cost
from minigraph.bench.plan import MACHINE, Plan, followed, missing, sides
from minigraph.bench.process import Failure, Worker
from minigraph.bench.results import CaseResult, ProbeResult, Results, SideResult, begin
from minigraph.bench.scale import scale

SETTLED = 0.05  # two turns that differ by less are a time that has settled
LEAST = 3  # turns, however long they take

Progress = Callable[[str, float], None]  # what is done now, the seconds it was to take


def run(
    plan: Plan, options: dict[str, Any], progress: Progress, keep: Callable[[Results], None]
) -> Results:
    """Measure; Ctrl-C ends it early and loses nothing.

    keep  is given the results so far after each case: hours are lost to a full disk otherwise
    """
    results = begin(options)
    results.missing = missing(plan)
    try:
        caches = tempfile.TemporaryDirectory(prefix="minigraph-bench-", ignore_cleanup_errors=True)
        with caches as folder:
            for model in plan.models:
                measurement = Measurement(plan, model, progress)
                results.cases[model] = measurement.found
                measurement.run(sides(plan, model, results.missing), Path(folder, model))
                keep(results)
    except KeyboardInterrupt:
        results.interrupted = True
    return results


class Measurement:
    """The measurement of one case.

    found    what it gave so far
    sides    the same by side, that of the machine too
    workers  of the sides that have not failed
    """

    def __init__(self, plan: Plan, model: str, progress: Progress) -> None:
        self.plan = plan
        self.model = model
        self.subject = subject = plan.task(model, "").subject
        self.found = CaseResult(
            subject.title,
            subject.images,
            subject.bytes,
            subject.flops,
            {str(level): speed for level, speed in subject.published.items()},
        )
        self.sides: dict[str, SideResult] = {}
        self.workers: dict[str, Worker] = {}
        self._progress = progress

    def run(self, commands: Mapping[str, Sequence[str]], folder: Path) -> None:
        """Fill in what the sides give; a side that fails says so and leaves."""
        self.sides = {name: SideResult() for name in commands}
        self.found.sides |= {name: side for name, side in self.sides.items() if name != MACHINE}
        try:
            for name, command in commands.items():
                self._say(name, start_cost(self.plan, name))
                # Of the machine itself nothing is compiled or tuned twice.
                caches = folder.parent if name == MACHINE else folder
                # Inductor hands its folder to a compiler as it is: no spaces.
                environment = _environment(self.plan, caches / re.sub(r"\W+", "-", name))
                self._start(name, command, environment)
            self._rounds()
            for name, worker in list(self.workers.items()):
                with self._failing(name):
                    known = worker.ask("details")
                    self.sides[name].peak = known["peak"]
                    self.sides[name].kernels = known.get("kernels", {})
            self._losses(followed(self.plan, self.model, self.workers))
        finally:
            if MACHINE in self.sides and self.sides[MACHINE].error:
                self.found.sides[MACHINE] = self.sides[MACHINE]
            for worker in self.workers.values():
                worker.kill()

    def _start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a worker, after another one if both first calls are to be measured."""
        side = self.sides[name]
        try:
            worker = Worker(command, environment)
            side.cold = worker.first
            if self.plan.twice and name != MACHINE:
                worker.kill()
                worker = Worker(command, environment)
                side.warm = worker.first
        except Failure as failure:
            side.error = str(failure)
        else:
            self.workers[name] = worker

    def _rounds(self) -> None:
        plan, workers = self.plan, self.workers
        warming = {name: list[float]() for name in workers}
        cost = turn_cost(plan, self.subject)
        start = time.monotonic()
        for i in range(plan.warmup + plan.repeats):
            warm = i < plan.warmup and not all(_settled(warming[name]) for name in workers)
            late = time.monotonic() - start > plan.limit
            if i < plan.warmup and (not warm or late):
                self._say("warm", cost * len(workers))
                continue
            if late and i - plan.warmup >= LEAST:
                self._say("done", cost * len(workers))
                continue
            for name, worker in list(workers.items())[:: -1 if i % 2 else 1]:
                self._say(name, cost)
                with self._failing(name):
                    took = worker.ask("turn")
                    if warm:
                        warming[name].append(sum(took.values()))
                        self.sides[name].warmup += 1
                    else:
                        self._count(name, took)

    def _count(self, name: str, took: Mapping[str, float]) -> None:
        if name != MACHINE:
            self.sides[name].seconds.append(took["step"])
            return
        work = scale(self.plan.device).work
        for what, seconds in took.items():
            step = self.found.machine.setdefault(what, ProbeResult(*work[what]))
            step.seconds.append(seconds)

    def _losses(self, names: Sequence[str]) -> None:
        """Fill in the first losses; a side that fails at it keeps all that it gave before."""
        for name in self.workers.keys() - names:
            self.workers.pop(name).kill()  # the others may need its memory
        for name in names:
            self._say(f"losses of {name}", losses_cost(self.plan, self.subject))
            worker = self.workers.pop(name)
            try:
                self.sides[name].losses = worker.ask("losses")["losses"]
            except Failure as failure:
                self.sides[name].lost = str(failure)
            finally:
                worker.kill()

    def _say(self, what: str, seconds: float) -> None:
        self._progress(f"{self.found.title}: {what}", seconds)

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        """A context in which a worker that fails leaves the others alone."""
        try:
            yield
        except Failure as failure:
            self.sides[name].error = str(failure)
            self.workers.pop(name).kill()


def _settled(seconds: Sequence[float]) -> bool:
    if len(seconds) < 2:
        return False
    before, last = seconds[-2:]
    return abs(last - before) <= SETTLED * before


def _environment(plan: Plan, folder: Path) -> dict[str, str]:
    """Return the environment of a side: its own caches, its number of threads."""
    caches = ("MINIGRAPH_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        **{name: value for name, value in os.environ.items() if name != "MINIGRAPH_OPTIONS"},
        **dict.fromkeys(caches, str(folder)),
        **dict.fromkeys(threads, str(plan.threads)),
        "OPENBLAS_THREAD_TIMEOUT": "4",  # 2 ** 4 cycles, not 2 ** 28, for which others would wait
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": plan.device.partition(":")[0],
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # else JAX takes most of a GPU that all share
    }

"""How sides are measured: in turn, in processes that all live at the same time.

The machine's speed drifts, so times are compared within one run only, and each round gives each
side one turn.  Separate processes keep the threads, allocators and libraries of the sides apart.
Threads of some libraries look for more work after a turn, which slows the next side down: every
other round is in reverse, so that it is not always the same side.
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

from minigraph.bench.cases import scale
from minigraph.bench.plan import MACHINE, Plan
from minigraph.bench.results import CaseResult, ProbeResult, Results, SideResult
from minigraph.bench.worker import Failure, Worker

SETTLED = 0.05  # a time has settled when two turns differ by less than this share
LEAST = 3  # turns of a side, however long they take

Progress = Callable[[str, float], None]  # what is done now, and the seconds planned for it


def measure_cases(
    plan: Plan, options: dict[str, Any], progress: Progress, keep: Callable[[Results], None]
) -> Results:
    """Measure all cases; Ctrl-C ends that early and loses nothing.

    keep  is called with the results after each case, so that a later failure loses none of them
    """
    results = Results.begin(options)
    results.missing = plan.missing()
    try:
        caches = tempfile.TemporaryDirectory(prefix="minigraph-bench-", ignore_cleanup_errors=True)
        with caches as folder:
            for model in plan.models:
                run = CaseRun(plan, model, progress)
                results.cases[model] = run.result
                run.measure(plan.sides(model), Path(folder, model))
                keep(results)
    except KeyboardInterrupt:
        results.interrupted = True
    return results


class CaseRun:
    """The measurement of one case.

    result   what it gave so far
    sides    the same by side, the probe included
    workers  of the sides that have not failed
    """

    def __init__(self, plan: Plan, model: str, progress: Progress) -> None:
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
        self._progress = progress

    def measure(self, commands: Mapping[str, Sequence[str]], folder: Path) -> None:
        """Fill in what the sides give; a side that fails keeps its error and leaves the others."""
        self.sides = {name: SideResult() for name in commands}
        self.result.sides |= {name: side for name, side in self.sides.items() if name != MACHINE}
        try:
            for name, command in commands.items():
                self._say(name, self.plan.start_seconds(name))
                # The probe is the same for all cases, and so are its caches.
                caches = folder.parent if name == MACHINE else folder
                # Inductor passes the folder to a compiler unquoted, so the name has no spaces.
                environment = _environment(self.plan, caches / re.sub(r"\W+", "-", name))
                with self._failing(name):
                    self._start(name, command, environment)
            self._rounds()
            for name, worker in list(self.workers.items()):
                with self._failing(name):
                    details = worker.ask("details")
                    self.sides[name].peak = details["peak"]
                    self.sides[name].kernels = details.get("kernels", {})
            self._losses(self.plan.compared(self.model, self.workers))
        finally:
            if MACHINE in self.sides and self.sides[MACHINE].error:
                self.result.sides[MACHINE] = self.sides[MACHINE]
            for worker in self.workers.values():
                worker.kill()

    def _start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a worker, after another one if both first calls are to be measured."""
        worker = Worker(command, environment)
        self.sides[name].cold = worker.first
        if self.plan.twice and name != MACHINE:
            worker.kill()
            worker = Worker(command, environment)
            self.sides[name].warm = worker.first
        self.workers[name] = worker

    def _rounds(self) -> None:
        plan, workers = self.plan, self.workers
        warming = {name: list[float]() for name in workers}
        cost = plan.turn_seconds(self.subject)
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
        for step, seconds in took.items():
            probe = self.result.machine.setdefault(step, ProbeResult(*work[step]))
            probe.seconds.append(seconds)

    def _losses(self, names: Sequence[str]) -> None:
        """Fill in the first losses; a side that fails here keeps its times."""
        for name in self.workers.keys() - names:
            self.workers.pop(name).kill()  # the others may need its memory
        for name in names:
            self._say(f"losses of {name}", self.plan.losses_seconds(self.subject))
            worker = self.workers.pop(name)
            try:
                self.sides[name].losses = worker.ask("losses")["losses"]
            except Failure as failure:
                self.sides[name].lost = str(failure)
            finally:
                worker.kill()

    def _say(self, what: str, seconds: float) -> None:
        self._progress(f"{self.result.title}: {what}", seconds)

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
    if len(seconds) < 2:
        return False
    before, last = seconds[-2:]
    return abs(last - before) <= SETTLED * before


def _environment(plan: Plan, folder: Path) -> dict[str, str]:
    """Return the environment variables of a side: its own caches, its number of threads."""
    caches = ("MINIGRAPH_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        **{name: value for name, value in os.environ.items() if name != "MINIGRAPH_OPTIONS"},
        **dict.fromkeys(caches, str(folder)),
        **dict.fromkeys(threads, str(plan.threads)),
        "OPENBLAS_THREAD_TIMEOUT": "4",  # threads spin for 2 ** 4 cycles, not 2 ** 28
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": plan.device.partition(":")[0],
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # else JAX takes most of the shared GPU
    }

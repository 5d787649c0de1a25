"""The measurement: the sides of a case in turn, all of them alive, one of them computing.

The machine's speed drifts, so figures are compared within one run only, and every round gives each
side one turn.  A process of its own keeps one side's threads, allocator and libraries from the
others'.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minigraph.bench.cases import NETWORKS
from minigraph.bench.results import CaseResult, Results, SideResult, begin
from minigraph.bench.worker import Task

SETTLED = 0.05  # two turns that differ by less are a time that has settled
LEAST = 3  # turns, however long they take
PEERS = {  # the library, the file that runs it, its sides
    "torch": ("torch", "torch_peer", ("", "channels last")),
    "torch.compile": ("torch", "torch_peer", ("compiled", "compiled, channels last")),
    "jax": ("jax", "jax_peer", ("",)),
}


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    repeats  turns of each side
    warmup   turns before them, at most
    limit    seconds of a case's turns, after which no new round begins
    budget   seconds of tuning a compile
    twice    start each side in two processes: with nothing on disk, then with what the first left
    """

    models: Sequence[str]
    levels: Sequence[int]
    peers: Sequence[str]
    device: str
    threads: int
    batch_size: int | None
    quick: bool
    repeats: int
    warmup: int
    limit: float
    budget: float
    twice: bool

    def task(self, model: str, setting: str) -> Task:
        return Task(
            *(model, setting, self.device, self.threads, self.batch_size, self.quick, self.budget)
        )


class Failure(Exception):
    """A worker that cannot go on; the text is one line."""


class Worker:
    """A process that runs one side of one case; `first` is what its first call took, in seconds."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the parent, which ends it
        )
        try:
            self.first: float = self._answer()["first"]
        except BaseException:
            self.kill()
            raise

    def ask(self, what: str) -> dict[str, Any]:
        """Return the answer to `turn` or `end`."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer says why
            print(what, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Failure(self._last_words(self._process.wait()))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failure(answer["error"])
        return answer

    def _last_words(self, status: int) -> str:
        if status == -signal.SIGKILL:
            return "was killed, as a system does that runs out of memory"
        self._said.seek(0)
        words = self._said.read().split("\n")
        last = next((w.strip() for w in reversed(words) if w.strip()), "it said nothing")
        return f"ended with status {status}: {last[:200]}"

    def kill(self) -> None:
        """End the process, whatever it does; more than once does no harm."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # with the compilers that it started
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            assert pipe is not None
            with suppress(BrokenPipeError):  # nobody is left to read what was written
                pipe.close()


Progress = Callable[[str, float], None]  # what is done now, the seconds it was to take


def run(plan: Plan, options: dict[str, Any], progress: Progress) -> Results:
    """Measure; Ctrl-C ends it early and loses nothing."""
    results = begin(options)
    libraries = [PEERS[peer][0] for peer in plan.peers]
    results.missing = [name for name in dict.fromkeys(libraries) if find_spec(name) is None]
    try:
        with tempfile.TemporaryDirectory(prefix="minigraph-bench-") as folder:
            for model in plan.models:
                subject = plan.task(model, "").subject
                results.cases[model] = found = CaseResult(
                    subject.title,
                    subject.images,
                    subject.bytes,
                    subject.flops,
                    {str(level): speed for level, speed in subject.published.items()},
                )
                commands = sides(plan, model, results.missing)
                measure(found, commands, plan, Path(folder, model), progress)
    except KeyboardInterrupt:
        results.interrupted = True
    return results


def sides(plan: Plan, model: str, missing: Sequence[str]) -> dict[str, list[str]]:
    """Return the command of each side of a case, by name, the machine itself first."""

    def command(file: str, setting: str) -> list[str]:
        task = json.dumps(asdict(plan.task(model, setting)))
        return [sys.executable, "-m", f"minigraph.bench.{file}", task]

    found = {"machine": command("probe", "")}
    found |= {f"level {level}": command("ours", str(level)) for level in plan.levels}
    for peer in plan.peers:
        library, file, settings = PEERS[peer]
        if library in missing:
            continue
        for setting in settings:
            layout = "channels last" in setting
            if not layout or model in NETWORKS:  # an expression has no channels
                name = f"{peer}, channels last" if layout else peer
                found[name] = command(file, setting)
    return found


def measure(
    found: CaseResult,
    commands: Mapping[str, Sequence[str]],
    plan: Plan,
    folder: Path,
    progress: Progress,
) -> None:
    """Fill in what the sides of a case give; a side that fails says so and leaves."""
    workers: dict[str, Worker] = {}
    results = {name: SideResult() for name in commands}
    found.sides |= {name: side for name, side in results.items() if name != "machine"}
    try:
        for name, command in commands.items():
            progress(f"{found.title}: {name}", start_cost(name, plan))
            # Of the machine itself nothing is compiled or tuned twice.
            caches = folder.parent if name == "machine" else folder
            # Inductor hands its folder to a compiler as it is: no spaces.
            environment = _environment(plan, caches / re.sub(r"\W+", "-", name))
            try:
                workers[name] = _start(results[name], command, environment, name, plan)
            except Failure as failure:
                results[name].error = str(failure)
        _rounds(found, results, workers, plan, progress)
        for name, worker in list(workers.items()):
            with _failing(name, results, workers):
                known = worker.ask("end")
                results[name].peak = known["peak"]
                results[name].kernels = known.get("kernels", {})
    finally:
        if "machine" in results and results["machine"].error:
            found.sides["machine"] = results["machine"]
        for worker in workers.values():
            worker.kill()


def _start(
    side: SideResult, command: Sequence[str], environment: dict[str, str], name: str, plan: Plan
) -> Worker:
    """Return a worker that is ready, after another one if both first calls are to be measured."""
    worker = Worker(command, environment)
    side.cold = worker.first
    if plan.twice and name != "machine":
        worker.kill()
        worker = Worker(command, environment)
        side.warm = worker.first
    return worker


def _rounds(
    found: CaseResult,
    results: Mapping[str, SideResult],
    workers: dict[str, Worker],
    plan: Plan,
    progress: Progress,
) -> None:
    warming = {name: list[float]() for name in workers}
    cost = turn_cost(found)
    start = time.monotonic()
    for i in range(plan.warmup + plan.repeats):
        warm = i < plan.warmup and not all(_settled(warming[name]) for name in workers)
        late = time.monotonic() - start > plan.limit
        if i < plan.warmup and (not warm or late):
            progress(f"{found.title}: warm", cost * len(workers))
            continue
        if late and i - plan.warmup >= LEAST:
            progress(f"{found.title}: done", cost * len(workers))
            continue
        for name, worker in list(workers.items()):
            progress(f"{found.title}: {name}", cost)
            with _failing(name, results, workers):
                took = worker.ask("turn")
                if warm:
                    warming[name].append(sum(took.values()))
                    results[name].warmup += 1
                elif name == "machine":
                    for what, seconds in took.items():
                        found.machine.setdefault(what, []).append(seconds)
                else:
                    results[name].seconds.append(took["step"])


@contextmanager
def _failing(
    name: str, results: Mapping[str, SideResult], workers: dict[str, Worker]
) -> Iterator[None]:
    """A context in which a worker that fails leaves the others alone."""
    try:
        yield
    except Failure as failure:
        results[name].error = str(failure)
        workers.pop(name).kill()


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
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": plan.device.partition(":")[0],
    }


# ---------------------------------------------------------------- how long it will take


def turn_cost(found: CaseResult) -> float:
    """Return about how many seconds a turn of a case takes."""
    return 0.2 + found.flops / 1e11


def start_cost(name: str, plan: Plan) -> float:
    """Return about how many seconds the start of a side takes."""
    once = 20 if name.startswith("torch.compile") else 4
    return once * (1 + plan.twice)


def cost(plan: Plan) -> float:
    """Return about how many seconds it all takes, as `run` says bit by bit."""
    total = 0.0
    for model in plan.models:
        subject = plan.task(model, "").subject
        missing = [name for name, *_ in PEERS.values() if find_spec(name) is None]
        names = sides(plan, model, missing)
        found = CaseResult(subject.title, subject.images, subject.bytes, subject.flops)
        turns = plan.warmup + plan.repeats
        total += sum(start_cost(name, plan) + turns * turn_cost(found) for name in names)
    return total

"""A worker: a process that runs one side of one case, a turn at each request.

The process gets a `Task` as JSON and answers in lines of JSON: first how long its first call took,
then to each line `turn` the seconds of a step by name, to `details` what else it knows about the
steps, to `losses` the losses of the first steps of training, and to `scores` what is predicted for
the first batch.  An error is an answer too.
`Worker` is the parent's end.

A side may be several processes, which a launcher of MPI starts.  All do the same; process 0 gets
the requests, passes them on, and answers.
"""

from __future__ import annotations

import math
import os
import platform
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.json import Decoder

from minigraph.bench.cases import Case, case
from minigraph.distributed import World, world
from minigraph.platform.records import decode, encode

PAUSE = 0.02  # seconds before a turn
LONG = 0.1  # seconds: shorter steps are run several times in a turn
MANY = 0.5  # the same where the slowest of many calls count
TURNS = 7  # of each step from which a share is made
BACKWARD = 2 / 3  # of a step: for each product, the backward pass computes two


@dataclass(frozen=True)
class Task:
    """What a worker has to do.

    setting  a level, or the mode of a peer
    threads  of each process
    budget   seconds of tuning per compile
    """

    case: str
    setting: str
    device: str
    threads: int
    batch_size: int | None
    quick: bool
    precision: str
    budget: float

    @property
    def subject(self) -> Case:
        return case(self.case, self.batch_size, self.quick, self.device, self.precision)


TASK, ANSWER = Decoder(Task), Decoder(dict[str, Any])


@dataclass(frozen=True)
class Side:
    """What a worker runs.

    steps    each runs until its results are there
    details  returns what is known afterwards, by name
    losses   returns the losses of the first steps of a training that starts from `first_value`
    scores   returns what a network with `first_value`s predicts for the first batch
    """

    steps: Mapping[str, Callable[[], None]]
    details: Callable[[], dict[str, Any]] = field(default=dict)
    losses: Callable[[], list[float]] = field(default=list)
    scores: Callable[[], list[float]] = field(default=list)


def predicting(
    batches: Sequence[Any],
    predict: Callable[[Any], Any],
    details: Callable[[], dict[str, Any]] = dict,
    values: Callable[[Any], Any] = np.asarray,
) -> Side:
    """Return the side of a prediction.

    batches  of images, as `predict` takes them
    predict  returns the scores of a batch when they are there
    values   returns scores as what NumPy takes
    """
    coming = cycle(batches)
    last: list[Any] = [None]  # a caller keeps a result until the next one

    def step() -> None:
        last[0] = predict(next(coming))

    def scores() -> list[float]:
        return [*map(float, np.ravel(values(predict(batches[0]))))]

    return Side({"step": step}, details, scores=scores)


# ---------------------------------------------------------------- in the worker


def serve(make: Callable[[Task], Side]) -> None:
    """Answer requests until the input ends."""
    team = world()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer

    def say(answer: Any) -> None:
        if team.rank == 0:
            print(encode(answer), file=answers, flush=True)

    try:
        task = decode(TASK, sys.argv[1])
        take_cores(task.threads)
        start = time.perf_counter()
        side = make(task)
        for step in side.steps.values():
            step()
        say({"first": time.perf_counter() - start})
        calls: dict[str, list[float]] = {name: [] for name in side.steps}
        for line in _requests(team):
            match line.strip():
                case "details":
                    peak = _total(team.gather(peak_memory()))
                    say({"peak": peak, **slowest(task, calls), **side.details()})
                case "losses":
                    say({"losses": side.losses()})
                case "scores":
                    say({"scores": side.scores()})
                case _:
                    time.sleep(PAUSE)
                    took = {name: _turn(task, step) for name, step in side.steps.items()}
                    for name, times in took.items():
                        calls[name] += times
                    say({name: statistics.median(times) for name, times in took.items()})
    except Exception as error:  # a failure is a line in the table
        if team.size > 1:
            raise  # it ends all processes, and is their last words
        words = " ".join(str(error).split())
        say({"error": f"{type(error).__name__}: {words}"[:300]})


def take_cores(threads: int) -> None:
    """Keep this process to so many cores of its own: not every library takes a number of threads.

    Processes for which no core is left share all of them.
    """
    machines = world().gather(platform.node())
    if hasattr(os, "sched_setaffinity"):
        first = machines[: world().rank].count(platform.node()) * threads
        cores = sorted(os.sched_getaffinity(0))[first : first + threads]
        os.sched_setaffinity(0, cores or os.sched_getaffinity(0))


def _requests(team: World) -> Iterator[str]:
    """Iterate over the lines of the input of process 0, in all processes of a team."""
    while True:
        line = sys.stdin.readline() if team.rank == 0 else ""
        line = team.broadcast(line, timeout=math.inf)  # other sides have their turns meanwhile
        if not line:
            return
        yield line


def _total(peaks: Sequence[int | None]) -> int | None:
    return None if None in peaks else sum(peak or 0 for peak in peaks)


def _turn(task: Task, step: Callable[[], object]) -> list[float]:
    return run_times(step, MANY if task.subject.latency else LONG)


def slowest(task: Task, calls: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the seconds that one of a hundred calls of a case takes longer than, if they count."""
    if not task.subject.latency or not all(calls.values()):
        return {}
    return {"p99": max(float(np.quantile(times, 0.99)) for times in calls.values())}


def seconds(step: Callable[[], object]) -> float:
    """Return the seconds of a step: of one run, or the median of several runs of a short step."""
    return statistics.median(run_times(step))


def run_times(step: Callable[[], object], least: float = LONG) -> list[float]:
    """Return the seconds of the runs of a step, which together take `least` seconds or more.

    All processes of a team run the step as often as process 0 does.

    OpenMP's threads spin for a few milliseconds after their work; in the pause before a turn those
    of the other sides fall asleep.  The first run of a short step is not counted.
    """
    took: list[float] = []
    while world().broadcast(sum(took) < least):
        start = time.perf_counter()
        step()
        took.append(time.perf_counter() - start)
    return took[1:] or took


def seconds_of_all(step: Callable[[], object]) -> float:
    """Return the seconds of a step in the process of a team that takes the longest."""
    return max(world().gather(seconds(step)))


def hidden(
    step: Callable[[], object], alone: Callable[[], object], exchange: Callable[[], object]
) -> float:
    """Return which share of the communication that can be hidden is: of medians of turns.

    alone     the step without communication
    exchange  the communication without the step
    """
    turns = [[seconds_of_all(each) for each in (step, alone, exchange)] for _ in range(TURNS)]
    return hidden_share(*map(statistics.median, zip(*turns, strict=True)))


def hidden_share(together: float, computing: float, talking: float) -> float:
    """Return the share of the shorter of backward pass and communication that a step does without.

    It is 0 where the step takes as long as both one after the other, and 1 where the longer of the
    two hides the other.
    """
    saved = (computing + talking - together) / min(BACKWARD * computing, talking)
    return min(1.0, max(0.0, saved))


def peak_memory() -> int | None:
    """Return the most bytes this process ever had in memory; None where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(x.split()[1]) for x in lines if x.startswith("VmHWM:")), None)


# ---------------------------------------------------------------- in the parent


class Failure(Exception):
    """A worker cannot go on; the text is one line."""


class Worker:
    """A process that runs one side of one case; `first` is the seconds of its first call.

    patience  seconds to wait for an answer; later ones are failures
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], patience: float
    ) -> None:
        self._printed = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only the parent, which ends the worker
        )
        try:
            self.first: float = self._answer(patience)["first"]
        except BaseException:
            self.kill()
            raise

    def ask(self, request: str, patience: float) -> dict[str, Any]:
        """Return the answer to a request; raises Failure if the worker cannot go on."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # _answer says why
            print(request, file=self._process.stdin, flush=True)
        return self._answer(patience)

    def _answer(self, patience: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        # An answer is a line, and there is one to each request, so nothing waits in the buffer.
        if not select.select([self._process.stdout], [], [], patience)[0]:
            raise Failure(f"gave no answer within {patience:.0f} s, the time that was left for it")
        line = self._process.stdout.readline()
        if not line:
            raise Failure(self._last_words(self._process.wait()))
        try:
            answer = decode(ANSWER, line)
        except ValueError as error:
            raise Failure(f"gave an answer that {error}") from None
        if "error" in answer:
            raise Failure(answer["error"])
        return answer

    def _last_words(self, status: int) -> str:
        if status == -signal.SIGKILL:
            return "was killed, probably by the system because it ran out of memory"
        self._printed.seek(0)
        lines = self._printed.read().split("\n")
        last = next((x.strip() for x in reversed(lines) if x.strip()), "it printed nothing")
        return f"ended with status {status}: {last[:200]}"

    def kill(self) -> None:
        """End the process; a second call does nothing."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # with the compilers that it started
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._printed):
            assert pipe is not None
            with suppress(BrokenPipeError):  # of requests that nobody will read
                pipe.close()

"""A worker: a process that runs one side of one case, a turn at each request.

The process gets a `Task` as JSON and answers in lines of JSON: first the seconds of its first call,
then to each line `turn` the seconds of a step, to `outputs` numbers that agree in all libraries,
and to `summary` its peak memory.  An error is an answer, too.  `Worker` is the parent's end.
"""

from __future__ import annotations

import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.json import Decoder

from minigraph.bench.cases import PRECISIONS, Case, ModelFile, Prediction, case
from minigraph.platform.records import decode, encode, one_line

TURN_PAUSE = 0.02  # seconds before a turn
MIN_TURN_SECONDS = 0.1  # shorter steps are run several times in a turn
MIN_LATENCY_SECONDS = 0.5  # for single examples, whose 99th percentile needs many calls


@dataclass(frozen=True)
class Task:
    """The work of a side.

    setting  a level, or the mode of a peer
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
        return case(self.case, self.batch_size, self.quick, self.device)

    @property
    def options(self) -> dict[str, Any]:
        """The options of minigraph, without the level."""
        shared = {"num_threads": self.threads, "autotune.budget": self.budget}
        return {**shared, **PRECISIONS[self.precision].options}


TASK_DECODER, ANSWER_DECODER = Decoder(Task), Decoder(dict[str, Any])


@dataclass(frozen=True)
class Side:
    """A side, ready to run.

    step           runs a step and waits for its end
    outputs        returns the losses of the first training steps from `first_value`, or the scores
                   of such a network for the first batch
    device_memory  returns the peak of a GPU's memory, in bytes; None for a CPU
    roofline       returns the seconds of a step at the device's full speed; None if unknown
    """

    step: Callable[[], object]
    outputs: Callable[[], Sequence[float]] = list
    device_memory: Callable[[], int | None] = lambda: None
    roofline: Callable[[], float | None] = lambda: None


# ---------------------------------------------------------------- in the worker


def step_function(
    call: Callable[..., Any], batches: Iterator[Sequence[Any]], wait: Callable[[Any], object]
) -> Callable[[], None]:
    """Return a step that calls a function with the next batch, and waits for the result.

    As most callers do, the step keeps a result until it has the next one.
    """
    last: list[Any] = [None]

    def step() -> None:
        last[0] = call(*next(batches))
        wait(last[0])

    return step


def serve(make: Callable[[Task], Side]) -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries must not mix with answers

    def say(answer: Any) -> None:
        print(encode(answer), file=answers, flush=True)

    try:
        task = decode(TASK_DECODER, sys.argv[1])
        limit_cores(task.threads)
        start = time.perf_counter()
        side = make(task)
        side.step()
        say({"first": time.perf_counter() - start})
        subject = task.subject
        single = isinstance(subject, Prediction | ModelFile) and subject.images == 1
        calls: list[float] = []
        for line in sys.stdin:
            match line.strip():
                case "outputs":
                    say({"outputs": side.outputs()})
                case "summary":
                    peak = side.device_memory() or peak_memory()
                    p99 = float(np.quantile(calls, 0.99)) if single and calls else None
                    say({"peak": peak, "p99": p99, "roofline": side.roofline()})
                case _:
                    time.sleep(TURN_PAUSE)
                    times = run_times(
                        side.step, MIN_LATENCY_SECONDS if single else MIN_TURN_SECONDS
                    )
                    calls += times
                    say({"step": statistics.median(times)})
    except Exception as error:  # a failure is a line in the table
        say({"error": one_line(f"{type(error).__name__}: {error}")[:300]})


def limit_cores(threads: int) -> None:
    """Limit this process to `threads` cores, as some libraries have no setting for threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def run_times(step: Callable[[], object], min_seconds: float = MIN_TURN_SECONDS) -> list[float]:
    """Return the seconds of each run of a step; all runs together take at least `min_seconds`.

    OpenMP's threads spin for a few milliseconds after their work; during the pause before a turn
    the threads of other sides fall asleep.  The first run of a short step is not counted.
    """
    times: list[float] = []
    while sum(times) < min_seconds:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times[1:] or times


def peak_memory() -> int | None:
    """Return the peak resident bytes of this process; None if the system does not report them."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(x.split()[1]) for x in lines if x.startswith("VmHWM:")), None)


# ---------------------------------------------------------------- in the parent


class Failure(Exception):
    """The error of a worker that cannot continue; its text is one line."""


class Worker:
    """A process that runs one side of one case; `first` is the seconds of its first call.

    timeout  seconds to wait for the first answer
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], timeout: float
    ) -> None:
        self._stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only the parent, which ends the worker
        )
        try:
            self.first: float = self._answer(timeout)["first"]
        except BaseException:
            self.kill()
            raise

    def ask(self, request: str, timeout: float) -> dict[str, Any]:
        """Return the answer to a request; raise Failure if the worker cannot continue."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # _answer says why
            print(request, file=self._process.stdin, flush=True)
        return self._answer(timeout)

    def _answer(self, timeout: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        # Each request has one line as its answer, so the buffer is empty and `select` is exact.
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            raise Failure(f"gave no answer within {timeout:.0f} s, the time that was left for it")
        line = self._process.stdout.readline()
        if not line:
            raise Failure(self._exit_reason(self._process.wait()))
        try:
            answer = decode(ANSWER_DECODER, line)
        except ValueError as error:
            raise Failure(f"gave an answer that {error}") from None
        if "error" in answer:
            raise Failure(answer["error"])
        return answer

    def _exit_reason(self, status: int) -> str:
        if status == -signal.SIGKILL:
            return "was killed, probably by the system because it ran out of memory"
        self._stderr.seek(0)
        lines = self._stderr.read().split("\n")
        last = next((x.strip() for x in reversed(lines) if x.strip()), "it printed nothing")
        return f"ended with status {status}: {last[:200]}"

    def kill(self) -> None:
        """End the process; a second call does nothing."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # and the compilers that it started
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):  # the worker may have ended
                pipe.close()

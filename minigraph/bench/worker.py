"""The worker: a process that runs one side of one case, a turn at each request.

It is given a `Task` as JSON and answers in lines of JSON: first how long the first call took, then
to each line `turn` the seconds of a step by name, to `details` what else it knows of the steps, to
`losses` those of the first steps of training.  What goes wrong is an answer too.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minigraph.bench.cases import Case, case

PAUSE, LONG = 0.02, 0.1


@dataclass(frozen=True)
class Task:
    """What a worker has to do.

    setting  of the side: a level, a mode of the peer
    budget   seconds of tuning a compile
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


@dataclass(frozen=True)
class Side:
    """What is run.

    steps    each runs to its end, results included
    details  what there is to know afterwards, by name
    losses   of the first steps of a training that begins anew; see `losses`
    """

    steps: Mapping[str, Callable[[], None]]
    details: Callable[[], dict[str, Any]] = field(default=dict)
    losses: Callable[[], list[float]] = field(default=list)


def serve(make: Callable[[Task], Side]) -> None:
    """Be a worker until the end of the input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer

    def say(what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        task = Task(**json.loads(sys.argv[1]))
        _keep_to(task.threads)
        start = time.perf_counter()
        side = make(task)
        for step in side.steps.values():
            step()
        say({"first": time.perf_counter() - start})
        for line in sys.stdin:
            match line.strip():
                case "details":
                    say({"peak": peak_memory(), **side.details()})
                case "losses":
                    say({"losses": side.losses()})
                case _:
                    time.sleep(PAUSE)
                    say({name: steady(step) for name, step in side.steps.items()})
    except Exception as error:  # a worker's failure is a line in the table
        words = " ".join(str(error).split())
        say({"error": f"{type(error).__name__}: {words}"[:300]})


def _keep_to(threads: int) -> None:
    """Let this process use as many processors as threads: not every library takes a number."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def steady(step: Callable[[], None]) -> float:
    """Return the seconds of a step: of one, or the median of several if one is short.

    OpenMP's threads go on spinning for a few milliseconds after their work; in the pause before a
    turn the other sides' fall asleep.  A short step is run once before it counts.
    """
    seconds: list[float] = []
    while sum(seconds) < LONG:
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:] or seconds)


def peak_memory() -> int | None:
    """Return the most bytes this process ever had in memory; None where nobody says."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(x.split()[1]) for x in lines if x.startswith("VmHWM:")), None)

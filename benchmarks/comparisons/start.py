"""How long a program takes until it has trained for some steps.

Run as a program of its own, this file is the process of a side, which counts its imports.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OURS = ("off", "tune", "exhaustive")  # values of `autotune`
PEERS = {"torch": "", "torch channels last": "channels last", "torch compiled": "compiled"}
CACHES = ("MINIGRAPH_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
MARKS = (1, 2, 10, 30, 50, 100)  # steps
LATE = 20  # of the last steps the median is shown
# Names of the stages in a report, and what a table calls them.
STAGES = {"build": "check", "optimize": "passes", "lower": "lower", "bind": "C and memory"}
COLUMNS = ("import", "network", "graph", *STAGES.values(), "build", "processors", "last steps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--side", action="append", choices=[*OURS, *PEERS], help="default: off")
    parser.add_argument("--steps", type=int, default=2, metavar="N")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="of each side")
    parser.add_argument("--quick", action="store_true", help="smaller images and batches")


def start(asked: argparse.Namespace) -> None:
    """Time a program from its start to the end of its first training steps, part by part.

    Each side trains each network in processes of its own, one after the other: the first with
    nothing on disk, the others, of which the medians are shown, with what the first left there.
    minigraph's sides are values of `autotune`.  Before all that each side trains a small network,
    which is not shown: it leaves the bytecode of its modules, as installing a package does.

    All is in seconds.  "graph" has the data, too.  "build" is all from the import to the first
    step, "processors" its processor time, the C compilers' included.  "last steps" is the median of
    the last ones, "to step N" the time from the start of the process.
    """
    columns = [*COLUMNS, *(f"to step {n}" for n in MARKS if n <= asked.steps)]
    sides = asked.side or OURS[:1]
    for side in sides:
        with tempfile.TemporaryDirectory() as folder:
            _run(side, "mlp", Path(folder), 1, quick=True)
    print("| network | side | disk |", " | ".join(columns), "|")
    print("| --- | --- | --- |" + " ---: |" * len(columns))
    for network in asked.networks:
        for side in sides:
            with tempfile.TemporaryDirectory() as folder:
                arguments = side, network, Path(folder), asked.steps, asked.quick
                found = [_run(*arguments) for _ in range(asked.processes)]
            for disk, runs in (("empty", found[:1]), ("filled", found[1:])):
                if runs:
                    cells = " | ".join(_median(runs, column) for column in columns)
                    print(f"| {network} | {side} | {disk} | {cells} |", flush=True)


def _median(runs: list[dict[str, float]], column: str) -> str:
    values = [run[column] for run in runs if column in run]
    return f"{statistics.median(values):.3g}" if values else "-"


def _run(side: str, network: str, folder: Path, steps: int, quick: bool) -> dict[str, float]:
    """Return the numbers that a side's process has printed, by column."""
    environment = {**os.environ, **{name: str(folder / name) for name in CACHES}}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in CACHES:
        (folder / name).mkdir(exist_ok=True)
    given = {"side": side, "network": network, "steps": steps, "quick": quick}
    given["start"] = time.perf_counter()  # the system's clock, the same in all processes
    command = [sys.executable, __file__, json.dumps(given)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# ---------------------------------------------------------------- in the process of a side


def train(given: dict[str, Any]) -> dict[str, float]:
    """Train, and return the numbers of this process by column."""

    def now() -> float:
        return time.perf_counter() - given["start"]

    step: Callable[[], object]
    if given["side"] in OURS:
        from minigraph.bench import ours as library
    else:
        from minigraph.bench import torch_peer as library
    from minigraph.bench.worker import Task, limit_cores, step_function

    imported, used = now(), sum(os.times()[:4])
    threads = len(os.sched_getaffinity(0))
    setting = PEERS.get(given["side"], "3")
    options = None, given["quick"], "float32", 30.0
    task = Task(given["network"], setting, "cpu", threads, *options)
    limit_cores(threads)
    found = {"import": imported}
    if given["side"] in OURS:
        cg = library.graph_for(task, 3)
        cg.set_option("autotune", given["side"])
        begin = now()
        net = task.subject.network(library.LIBRARY)
        found["network"] = now() - begin
        begin = now()
        function, batches = library.training(cg, task.subject, net)
        stages = {STAGES[name]: s for name, s in function.report().seconds.items()}
        found |= {"graph": now() - begin - sum(stages.values()), **stages}
        step = step_function(function, batches, library.wait)
    else:
        step = library.torch_side(task).step
    built = now()
    found |= {"build": built - imported, "processors": sum(os.times()[:4]) - used}
    ends = [built]
    for _ in range(given["steps"]):
        step()
        ends.append(now())
    seconds = [after - before for before, after in itertools.pairwise(ends)]
    found["last steps"] = statistics.median(seconds[-LATE:])
    return found | {f"to step {n}": ends[n] for n in MARKS if n < len(ends)}


if __name__ == "__main__":
    print(json.dumps(train(json.loads(sys.argv[1]))))

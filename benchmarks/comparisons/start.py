"""Measure how long a program takes from its start through its first training steps.

Run as a script, this file is the process of one side, so that the times include its imports.
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
LATE = 20  # number of the last steps whose median a table shows
# The stages of a report, and a table's names for them.
STAGES = {"build": "check", "optimize": "passes", "lower": "lower", "bind": "C and memory"}
COLUMNS = ("import", "network", "graph", *STAGES.values(), "build", "processors", "last steps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--side", action="append", choices=[*OURS, *PEERS], help="default: off")
    parser.add_argument("--steps", type=int, default=2, metavar="N")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="of each side")
    parser.add_argument("--quick", action="store_true", help="smaller images and batches")


def start(args: argparse.Namespace) -> None:
    """Time a program from its start to the end of its first training steps, part by part.

    Each side trains each network in several processes, one after the other: the first with empty
    caches, the others with the caches that the first filled; the table shows the medians of these.
    minigraph's sides are values of `autotune`.  Each side first trains a small network, which the
    table does not show, to write the bytecode of its modules as installing a package does.

    All times are in seconds.  "graph" includes the data.  "build" is the time from the import to
    the first step, "processors" its processor time including that of C compilers.  "last steps" is
    the median of the last steps, "to step N" the time from the start of the process.
    """
    columns = [*COLUMNS, *(f"to step {n}" for n in MARKS if n <= args.steps)]
    sides = args.side or OURS[:1]
    for side in sides:
        with tempfile.TemporaryDirectory() as folder:
            _run(side, "mlp", Path(folder), 1, quick=True)
    print("| network | side | disk |", " | ".join(columns), "|")
    print("| --- | --- | --- |" + " ---: |" * len(columns))
    for network in args.networks:
        for side in sides:
            with tempfile.TemporaryDirectory() as folder:
                arguments = side, network, Path(folder), args.steps, args.quick
                results = [_run(*arguments) for _ in range(args.processes)]
            for disk, runs in (("empty", results[:1]), ("filled", results[1:])):
                if runs:
                    cells = " | ".join(_median(runs, column) for column in columns)
                    print(f"| {network} | {side} | {disk} | {cells} |", flush=True)


def _median(runs: list[dict[str, float]], column: str) -> str:
    values = [run[column] for run in runs if column in run]
    return f"{statistics.median(values):.3g}" if values else "-"


def _run(side: str, network: str, folder: Path, steps: int, quick: bool) -> dict[str, float]:
    """Return the numbers that the process of a side prints, by column."""
    environment = {**os.environ, **{name: str(folder / name) for name in CACHES}}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in CACHES:
        (folder / name).mkdir(exist_ok=True)
    options = {"side": side, "network": network, "steps": steps, "quick": quick}
    options["start"] = time.perf_counter()  # the system's clock, the same in all processes
    command = [sys.executable, __file__, json.dumps(options)]
    process = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(process.stdout.splitlines()[-1])


# ---------------------------------------------------------------- in the process of a side


def train(options: dict[str, Any]) -> dict[str, float]:
    """Train, and return the numbers of this process by column."""

    def now() -> float:
        return time.perf_counter() - options["start"]

    step: Callable[[], object]
    if options["side"] in OURS:
        from minigraph.bench import ours as library
    else:
        from minigraph.bench import torch_peer as library
    from minigraph.bench.worker import Task, limit_cores, step_function

    imported, cpu_seconds = now(), sum(os.times()[:4])
    threads = len(os.sched_getaffinity(0))
    setting = PEERS.get(options["side"], "3")
    batch_size, budget = None, 30.0
    sizes = batch_size, options["quick"], "float32", budget
    task = Task(options["network"], setting, "cpu", threads, *sizes)
    limit_cores(threads)
    columns = {"import": imported}
    if options["side"] in OURS:
        cg = library.graph_for(task, 3)
        cg.set_option("autotune", options["side"])
        begin = now()
        net = task.subject.network(library.LIBRARY)
        columns["network"] = now() - begin
        begin = now()
        function, batches = library.training(cg, task.subject, net)
        stages = {STAGES[name]: s for name, s in function.report().seconds.items()}
        columns |= {"graph": now() - begin - sum(stages.values()), **stages}
        step = step_function(function, batches, library.wait)
    else:
        step = library.torch_side(task).step
    built = now()
    columns |= {"build": built - imported, "processors": sum(os.times()[:4]) - cpu_seconds}
    finished = [built]
    for _ in range(options["steps"]):
        step()
        finished.append(now())
    seconds = [after - before for before, after in itertools.pairwise(finished)]
    columns["last steps"] = statistics.median(seconds[-LATE:])
    return columns | {f"to step {n}": finished[n] for n in MARKS if n < len(finished)}


if __name__ == "__main__":
    print(json.dumps(train(json.loads(sys.argv[1]))))

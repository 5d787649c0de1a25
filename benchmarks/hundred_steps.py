"""Print how long the first hundred training steps take, from the start of the process.

    python benchmarks/hundred_steps.py [NETWORK ...] [--side SIDE ...] [--steps 100] [--quick]
        [--again] [--out FILE]

Each side trains each network in a fresh process of its own, with nothing on disk; with --again a
second process follows, which finds what the first has left.  Before all that each side trains a
small network, which is not shown: it leaves the bytecode of its modules, as installing a package
does, also where PYTHONDONTWRITEBYTECODE is set.  --out adds the results to a JSON file.
The columns of steps have the seconds from the start of the process to their ends.  The longest
step, from the third on, is told in parts of the step before it.
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

NETWORKS = ("mlp", "alexnet", "resnet18", "resnet50")
OURS = ("tune", "off")  # values of `autotune`
PEERS = {  # and what the bench asks of each
    "torch": "",
    "torch channels last": "channels last",
    "torch compiled": "compiled",
    "jax": "",
}
CACHES = ("MINIGRAPH_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
LATE = 20  # of the last steps the median is shown
MARKS = (1, 10, 30, 50, 100)  # steps
PARTS = ("import", "build", "first step", "last", "longest step")


# ---------------------------------------------------------------- in the process of a side


def main_of_side(given: dict[str, Any]) -> None:
    """Train, and print as JSON when what was done, in seconds since the process was started."""
    marks, seconds, compiled = {}, [], {}

    def now() -> float:
        return time.perf_counter() - given["start"]  # the system's clock, the same in all processes

    step: Callable[[], object]
    if given["side"] in OURS:
        from minigraph.bench import ours as library
    elif given["side"] == "jax":
        from minigraph.bench import jax_peer as library
    else:
        from minigraph.bench import torch_peer as library
    from minigraph.bench.worker import Task, take_cores

    marks["import"] = now()
    threads = len(os.sched_getaffinity(0))
    setting = PEERS.get(given["side"], "3")
    task = Task(
        given["network"], setting, "cpu", threads, None, given["quick"], "float32", budget=30.0
    )
    take_cores(threads)
    if given["side"] in OURS:
        cg = library.graph_for(task, 3)
        cg.set_option("autotune", given["side"])
        function, batches = library.training(
            cg, task.subject, task.subject.network(library.LIBRARY)
        )
        step = library.until_done(function, batches, task)
    else:
        make = library.jax_side if given["side"] == "jax" else library.torch_side
        step = make(task).steps["step"]
    marks["build"] = now()
    for _ in range(given["steps"]):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    marks["total"] = now()
    if given["side"] in OURS:
        compiled = {"seconds": function.report().seconds}
    print(json.dumps({"at": marks, "steps": seconds, "compiled": compiled}))


# ---------------------------------------------------------------- in the parent


def run(side: str, network: str, folder: Path, steps: int, quick: bool) -> dict[str, Any]:
    """Return what a side's process has printed, or what ended it."""
    environment = {**os.environ, **{name: str(folder / name) for name in CACHES}}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in CACHES:
        (folder / name).mkdir(exist_ok=True)
    given = {"side": side, "network": network, "steps": steps, "quick": quick}
    given["start"] = time.perf_counter()
    command = [sys.executable, __file__, "--as", json.dumps(given)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def summary(found: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a run, most of them seconds, by the names in PARTS and the MARKS."""
    at, steps = found["at"], found["steps"]
    values = (
        at["import"],
        at["build"] - at["import"],
        steps[0],
        statistics.median(steps[-LATE:]),
        max((after / before for before, after in itertools.pairwise(steps[1:])), default=0.0),
    )
    ends = {f"step {n}": at["build"] + sum(steps[:n]) for n in MARKS if n <= len(steps)}
    return dict(zip(PARTS, values, strict=True)) | ends


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=[*NETWORKS], metavar="NETWORK")
    parser.add_argument("--side", action="append", choices=[*OURS, *PEERS])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="smaller images and batches")
    parser.add_argument("--again", action="store_true", help="also a second process")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--as", dest="given", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.given:
        main_of_side(asked.given)
        return
    from minigraph.function.text_file import write_text  # here: a side times its imports

    results = json.loads(asked.out.read_text()) if asked.out and asked.out.exists() else []
    columns = [*PARTS, *(f"step {n}" for n in MARKS if n <= asked.steps)]
    sides = asked.side or (*OURS, *PEERS)
    for side in sides:
        with tempfile.TemporaryDirectory() as folder:
            run(side, "mlp", Path(folder), steps=1, quick=True)
    print("| network | side | disk |", " | ".join(columns), "|")
    print("| --- | --- | --- |" + " ---: |" * len(columns))
    for network in asked.networks:
        for side in sides:
            with tempfile.TemporaryDirectory() as folder:
                for disk in ("empty", "filled")[: 1 + asked.again]:
                    found = run(side, network, Path(folder), asked.steps, asked.quick)
                    results.append({"network": network, "side": side, "disk": disk, **found})
                    numbers = [f"{x:.3g}" for x in summary(found).values()] if "at" in found else []
                    said = " | ".join(numbers) or found["error"]
                    print(f"| {network} | {side} | {disk} | {said} |", flush=True)
            if asked.out:
                write_text(asked.out, json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

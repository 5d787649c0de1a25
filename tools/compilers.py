"""Train networks with each compiler, with and without oneDNN; other Pythons train with the first.

    python tools/compilers.py --pythons .venv/bin/python ../python3.13/bin/python \
        --json benchmarks/results/cpu/compilers/zen5/results.json

A Python is the interpreter of an environment with minigraph's dependencies; the default is the one
that runs this program.  Each cell is a process on one thread with an empty cache of kernels: the
time to compile and call once, and the processor time of a step, which other programs affect least.
A compiler that is not installed has no cell.  The losses of each cell must be those of the first.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minigraph.cache.machine import processor

PROGRAM = """
import json, sys, time, warnings
import numpy as np
warnings.simplefilter("ignore")
model, name, has_onednn, seconds = json.loads(sys.argv[1])
from minigraph.devices.cpu import compiler, onednn
from minigraph.platform import toolchain
if name == "zig" and not toolchain.zig() or name == "halide" and compiler.why_no_halide():
    sys.exit(print("null"))
if not has_onednn:
    onednn.library = lambda: None
if name != "zig":
    toolchain.zig = lambda: None
import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.bench.networks import resnet, with_blocks

nn.manual_seed(0)
if model == "mlp":
    net = nn.Sequential(nn.Linear(784, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10))
    shape = (256, 784)
else:
    net, shape = resnet(with_blocks(nn, ops), (2, 2, 2, 2), False), (4, 3, 64, 64)
x, y = mg.input("x", shape), mg.input("y", shape[:1], "int64")
loss = ops.cross_entropy(net(x), y)
optimizer = optim.Adam(net.parameters(), lr=1e-4)
start = time.perf_counter()
options = {"graph_opt_level": 3, "autotune": "off", "num_threads": 1}
updates = {**optimizer.minimize(loss), **net.updates()}
step = mg.comp_graph("cpu", options).compile([x, y], loss, updates)
rng = np.random.default_rng(0)
xs, ys = rng.normal(size=shape).astype("float32"), rng.integers(0, 10, shape[0])
losses, times = [float(step(xs, ys))], []
first = time.perf_counter() - start
while sum(times) < seconds or len(times) < 4:
    begin = time.process_time()
    losses.append(float(step(xs, ys)))
    times.append(time.process_time() - begin)
makers = sorted({maker.split()[0] for _, maker, _ in step.report().steps})
print(json.dumps({
    "compiler": name if name in ("halide", "nothing") else compiler.compiler_name(),
    "onednn": has_onednn, "python": sys.version.split()[0], "model": model, "losses": losses[:5],
    "first": round(first, 2), "step": float(np.median(times)), "makers": makers,
}))
"""
NO_COMPILER = {"PATH": "", "CC": ""}


def compilers() -> dict[str, dict[str, str]]:
    """Return the environment variables of each row."""
    paths = {name: shutil.which(name) for name in ("gcc", "clang")}
    rows = {name: {"CC": path} for name, path in paths.items() if path}
    rows |= {"zig": NO_COMPILER, "halide": NO_COMPILER, "nothing": NO_COMPILER}
    backends = {name: "halide" if name == "halide" else "c" for name in rows}
    return {
        name: {**variables, "MINIGRAPH_JIT_BACKEND": backends[name]}
        for name, variables in rows.items()
    }


def cell(python: str, variables: dict[str, str], *arguments: object) -> dict[str, Any] | None:
    """Return the measurements of a process; None if its compiler is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        root = str(Path(__file__).parents[1])
        ours = {"MINIGRAPH_CACHE_DIR": folder, "PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"}
        environment = os.environ | variables | ours
        command = [python, "-c", PROGRAM, json.dumps(arguments)]
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
    if process.returncode:
        sys.exit(f"{python}, {arguments}: {process.stderr}")
    measured: dict[str, Any] | None = json.loads(process.stdout)
    return measured


def cells(models: list[str], pythons: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield all cells of the first Python, and those of the first compiler of other Pythons."""
    rows = compilers()
    for model in models:
        expected: list[float] = []
        for python in pythons:
            for name, variables in rows.items() if python == pythons[0] else [*rows.items()][:1]:
                for has_onednn in (True, False) if python == pythons[0] else (True,):
                    measured = cell(python, variables, model, name, has_onednn, seconds)
                    if measured is None:
                        continue
                    losses = measured.pop("losses")
                    pairs = zip(losses, expected := expected or losses, strict=False)
                    if any(abs(a - b) > 5e-3 * abs(b) + 1e-4 for a, b in pairs):
                        sys.exit(f"{measured}: losses {losses}, not {expected}")
                    yield measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of steps in each cell")
    parser.add_argument("--models", nargs="*", default=["mlp", "resnet18"])
    parser.add_argument("--pythons", nargs="*", default=[sys.executable])
    parser.add_argument(
        "--json", type=Path, help="write the cells to this file, for docs/tables.py"
    )
    args = parser.parse_args()
    measured = []
    for row in cells(args.models, args.pythons, args.seconds):
        print(json.dumps(row), flush=True)
        measured.append(row)
    if args.json:
        about = {
            "date": f"{datetime.date.today()}",
            "processor": processor().partition(" features ")[0],
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({**about, "cells": measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()

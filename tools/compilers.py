"""Train networks with each compiler, with and without oneDNN, on each Python; print tables.

    python tools/compilers.py [--seconds 5] [--models mlp resnet18] [--pythons PATH ...]

A path is the interpreter of an environment with what minigraph takes; the default is the one that
runs this.  Each cell is a process with an empty cache of kernels, on one thread: how long it takes
to compile and call once, and the processor's time of a step, which other programs change least.
"-" is a compiler that is not there.  The losses of a cell have to be those of the first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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
    begun = time.process_time()
    losses.append(float(step(xs, ys)))
    times.append(time.process_time() - begun)
makers = sorted({made.split()[0] for _, made, _ in step.report().steps})
print(json.dumps([losses[:5], first, float(np.median(times)), makers]))
"""
NOWHERE = {"PATH": "", "CC": ""}


def compilers() -> dict[str, dict[str, str]]:
    """Return the environment variables of each row."""
    paths = {name: shutil.which(name) for name in ("gcc", "clang")}
    found = {name: {"CC": path} for name, path in paths.items() if path}
    found |= {"zig": NOWHERE, "halide": NOWHERE, "nothing": NOWHERE}
    backends = {name: "halide" if name == "halide" else "c" for name in found}
    return {
        name: {**variables, "MINIGRAPH_JIT_BACKEND": backends[name]}
        for name, variables in found.items()
    }


def cell(python: str, variables: dict[str, str], *asked: object) -> tuple[list[float], str, str]:
    """Return the losses of a process, its times, and who made its kernels."""
    with tempfile.TemporaryDirectory() as folder:
        root = str(Path(__file__).parents[1])
        environment = os.environ | variables | {"MINIGRAPH_CACHE_DIR": folder, "PYTHONPATH": root}
        command = [python, "-c", PROGRAM, json.dumps(asked)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{python}, {asked}: {done.stderr}")
    answer = json.loads(done.stdout)
    if answer is None:
        return [], "-", ""
    losses, first, step, makers = answer
    return losses, f"{first:.2f} s, {step * 1e3:.2f} ms", ", ".join(makers)


def table(model: str, pythons: list[str], seconds: float) -> None:
    """Print the table of a network: a row for each compiler, a column for each Python."""
    say = "import platform; print(platform.python_version())"
    versions = [
        subprocess.run([python, "-c", say], capture_output=True, text=True, check=True).stdout
        for python in pythons
    ]
    heads = ["Compiler", "oneDNN", "Kernels", *(f"Python {v.strip()}" for v in versions)]
    print(f"{model}: first call, step\n\n|", " | ".join(heads), "|")
    print("|", " | ".join("---" for _ in heads), "|", flush=True)
    expected: list[float] = []
    for name, variables in compilers().items():
        for has_onednn in (True, False):
            times, kernels = [], ""
            for python in pythons:
                losses, time, makers = cell(python, variables, model, name, has_onednn, seconds)
                expected, kernels = expected or losses, kernels or makers
                times.append(time)
                pairs = zip(losses, expected, strict=False)
                if any(abs(a - b) > 5e-3 * abs(b) + 1e-4 for a, b in pairs):
                    sys.exit(f"{name}, oneDNN {has_onednn}: losses {losses}, not {expected}")
            print("|", " | ".join((name, "yes" if has_onednn else "no", kernels, *times)), "|")
            sys.stdout.flush()
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of steps in each cell")
    parser.add_argument("--models", nargs="*", default=["mlp", "resnet18"])
    parser.add_argument("--pythons", nargs="*", default=[sys.executable])
    asked = parser.parse_args()
    for model in asked.models:
        table(model, asked.pythons, asked.seconds)


if __name__ == "__main__":
    main()

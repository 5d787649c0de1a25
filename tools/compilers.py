"""Train a perceptron with each compiler, with and without oneDNN, and print a table.

    python tools/compilers.py [--steps 200] [--batch 256]

Each cell is a process with an empty cache of kernels.  "first" is the time to compile and to call
once.  A compiler that is not here has no row; the losses of a cell have to be those of the first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

from minigraph.devices.cpu import compiler
from minigraph.platform import toolchain

PROGRAM = """
import json, sys, time, warnings
import numpy as np
warnings.simplefilter("ignore")
steps, batch, has_onednn, has_zig = json.loads(sys.argv[1])
from minigraph.devices.cpu import onednn
from minigraph.platform import toolchain
if not has_onednn:
    onednn.library = lambda: None
if not has_zig:
    toolchain.zig = lambda: None
import minigraph as mg
from minigraph import nn, ops, optim

nn.manual_seed(0)
net = nn.Sequential(nn.Linear(784, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10))
x, y = mg.input("x", (batch, 784)), mg.input("y", (batch,), "int64")
loss = ops.cross_entropy(net(x), y)
optimizer = optim.Adam(net.parameters(), lr=1e-3)
start = time.perf_counter()
options = {"graph_opt_level": 3, "autotune": "off"}
step = mg.comp_graph("cpu", options).compile([x, y], loss, optimizer.minimize(loss))
rng = np.random.default_rng(0)
xs, ys = rng.normal(size=(batch, 784)).astype("float32"), rng.integers(0, 10, batch)
losses, times = [float(step(xs, ys))], []
first = time.perf_counter() - start
for _ in range(steps):
    begun = time.perf_counter()
    losses.append(float(step(xs, ys)))
    times.append(time.perf_counter() - begun)
makers = sorted({made.split()[0] for _, made, _ in step.report().steps})
print(json.dumps([losses[:20], first, float(np.median(times)), makers]))
"""
NOWHERE = {"PATH": "", "CC": ""}


def compilers() -> dict[str, tuple[dict[str, str], bool]]:
    """Return for each row the environment, and whether ziglang may be found."""
    found: dict[str, tuple[dict[str, str], bool]] = {}
    for name in ("gcc", "clang"):
        if path := shutil.which(name):
            found[name] = ({"CC": path, "MINIGRAPH_JIT_BACKEND": "c"}, False)
    if toolchain.zig():
        found["zig"] = ({**NOWHERE, "MINIGRAPH_JIT_BACKEND": "c"}, True)
    if not compiler.why_no_halide():
        found["halide"] = ({**NOWHERE, "MINIGRAPH_JIT_BACKEND": "halide"}, False)
    found["nothing"] = ({**NOWHERE, "MINIGRAPH_JIT_BACKEND": "c"}, False)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=256)
    asked = parser.parse_args()
    expected: list[float] = []
    print(
        "| Compiler | oneDNN | First call, s | Step, ms | Kernels |",
        "| --- | --- | --- | --- | --- |",
        sep="\n",
    )
    for name, (settings, has_zig) in compilers().items():
        for has_onednn in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                given = json.dumps([asked.steps, asked.batch, has_onednn, has_zig])
                environment = {**os.environ, **settings, "MINIGRAPH_CACHE_DIR": folder}
                command = [sys.executable, "-c", PROGRAM, given]
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, check=False
                )
            if done.returncode:
                sys.exit(f"{name}: {done.stderr}")
            losses, first, step, makers = json.loads(done.stdout)
            expected = expected or losses
            if any(
                abs(a - b) > 2e-3 * abs(b) + 1e-4 for a, b in zip(losses, expected, strict=True)
            ):
                sys.exit(f"{name}, oneDNN {has_onednn}: losses {losses}, not {expected}")
            cells = (name, "yes" if has_onednn else "no", f"{first:.2f}", f"{step * 1e3:.2f}")
            print("|", " | ".join((*cells, ", ".join(makers))), "|", flush=True)


if __name__ == "__main__":
    main()

"""Print what the time until the first training step is made of, in seconds.

    python benchmarks/first_step.py [NETWORK ...] [--processes 3] [--autotune tune]

Each network trains untuned (autotune="off") at level 3 in processes of its own: the first with
nothing on disk, the others, of which it shows the medians, with the kernels that it left.  With
--autotune tune the first measures algorithms, which counts as a pass, and the others choose by
that.  All is wall time, but for the processor time of compiling, which has that of the C compilers.
The second step is what the first would be if all memory had been touched before.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

NETWORKS = ("mlp", "resnet18", "resnet50")
PARTS = ("import", "network", "graph", "build", "optimize", "lower", "bind", "step 1", "step 2")
COLUMNS = ("import", "network", "graph", "check", "passes", "lower", "C and memory", *PARTS[-2:])


def spent():
    """Return the wall time and the processor time so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(each.ru_utime + each.ru_stime for each in used)


def main_of_process(network, autotune):
    """Train two steps, and print as JSON what each part took."""
    parts, since = {}, spent()

    def done(*names):
        nonlocal since
        now = spent()
        for name in names:
            parts[name] = [b - a for a, b in zip(since, now, strict=True)]
        since = spent()

    import minigraph as mg
    from minigraph import optim

    done("import")
    from minigraph.bench.ours import LIBRARY
    from minigraph.bench.worker import Task

    task = Task(network, "3", "cpu", 0, None, False, "float32", budget=0.0)
    batch = task.subject.data()[0]
    since = spent()
    net = task.subject.network(LIBRARY)
    done("network")
    x, labels = (
        mg.input(name, y.shape, y.dtype) for name, y in zip(("x", "labels"), batch, strict=True)
    )
    loss = mg.ops.cross_entropy(net(x), labels)
    updates = {**optim.Adam(net.parameters()).minimize(loss), **net.updates()}
    done("graph")
    cg = mg.comp_graph("cpu", {"graph_opt_level": 3, "autotune": autotune})
    step = cg.compile([x, labels], loss, updates)
    done("compile")
    step(*batch)
    done("step 1")
    step(*batch)
    done("step 2")
    whole = parts.pop("compile")
    parts |= {name: [seconds, 0.0] for name, seconds in step.report().seconds.items()}
    print(json.dumps({"parts": parts, "compile": whole}))


def run(network, folder, autotune):
    """Return what a process has printed."""
    environment = {**os.environ, "MINIGRAPH_CACHE_DIR": folder}
    # An installed package has its bytecode.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, __file__, "--as", network, "--autotune", autotune]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=[*NETWORKS], metavar="NETWORK")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--as", dest="network", help=argparse.SUPPRESS)
    parser.add_argument("--autotune", choices=("off", "tune"), default="off")
    asked = parser.parse_args()
    if asked.network:
        main_of_process(asked.network, asked.autotune)
        return
    print("| network | disk |", " | ".join(COLUMNS), "| compile, processors | to step 1 |")
    print("| --- | --- |" + " ---: |" * (len(COLUMNS) + 2))
    for network in asked.networks:
        with tempfile.TemporaryDirectory() as folder:
            runs = [run(network, folder, asked.autotune) for _ in range(asked.processes)]
        for disk, found in (("empty", runs[:1]), ("filled", runs[1:])):
            show(network, disk, found)


def show(network, disk, runs):
    """Print a row: the medians of some processes."""

    def median(of):
        return statistics.median(map(of, runs))

    walls = [median(lambda r, name=name: r["parts"][name][0]) for name in PARTS]
    processors = median(lambda r: r["compile"][1])
    numbers = [*walls, processors, sum(walls[:-1])]
    print(f"| {network} | {disk} |", " | ".join(f"{x:.2f}" for x in numbers), "|", flush=True)


if __name__ == "__main__":
    main()

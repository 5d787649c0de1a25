"""Print what the memory of a training process holds.

    python benchmarks/peak_memory.py [NETWORK ...]

Each network trains for a few steps at level 3 in a fresh process, with the algorithms that were
measured before, else by heuristics.  Parts are in MiB:

    libraries  resident after the import of NumPy and minigraph
    batches    images and labels, and their copies in minigraph's own memory
    state      parameters, the optimizer's state and running statistics
    arena      intermediate results
    rest       of the peak: the graph and its program, code, and what the libraries allocate
"""

import argparse
import multiprocessing
from pathlib import Path

import minigraph as mg
from minigraph.bench.cases import NETWORKS, case
from minigraph.bench.ours import LIBRARY, training

STEPS = 4
MIB = 1 << 20


def resident(field):
    """Return a field of /proc/self/status in MiB: VmRSS, or VmHWM for the largest so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def parts(name):
    """Train a network in this process; return its parts and the peak."""
    libraries = resident("VmRSS")
    subject = case(name, None)
    cg = mg.comp_graph(options={"graph_opt_level": 3, "autotune": "cached"})
    step, batches = training(cg, subject, subject.network(LIBRARY))
    for _ in range(STEPS):
        step(*next(batches))
    peak, memory = resident("VmHWM"), step.report().memory
    data = 2 * sum(x.nbytes for batch in subject.data() for x in batch) / MIB
    known = libraries, data, memory.parameter_bytes / MIB, memory.arena_bytes / MIB
    return *known, peak - sum(known), peak


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], metavar="NETWORK")
    names = parser.parse_args().networks or ["alexnet", "resnet18", "resnet50"]
    print("| network | libraries | batches | state | arena | rest | peak |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in names:
        with multiprocessing.get_context("spawn").Pool(1) as process:
            found = process.apply(parts, (name,))
        print("|", " | ".join((NETWORKS[name].title, *(f"{part:,.0f}" for part in found))), "|")


if __name__ == "__main__":
    main()

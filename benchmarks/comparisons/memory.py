"""What the memory of a training process holds."""

import argparse
import multiprocessing

from comparisons.turns import print_header, print_row

import minigraph as mg
from minigraph.bench.cases import NETWORKS, case
from minigraph.bench.ours import LIBRARY, training
from minigraph.bench.worker import peak_memory

STEPS = 4
MIB = 1 << 20


def memory(asked: argparse.Namespace) -> None:
    """Show what the memory of a training process holds, in MiB.

    Each network trains for a few steps at level 3 in a fresh process, with the algorithms that were
    measured before, else by heuristics.

    libraries  the most that their import takes, NumPy's and minigraph's
    batches    images and labels, and their copies in minigraph's own memory
    state      parameters, the optimizer's state and running statistics
    arena      intermediate results
    rest       of the peak: the graph and its program, code, and what the libraries allocate
    """
    print_header("network", "libraries", "batches", "state", "arena", "rest", "peak")
    for name in asked.networks:
        with multiprocessing.get_context("spawn").Pool(1) as process:
            found = process.apply(_parts, (name,))
        print_row(NETWORKS[name].title, *(f"{part / MIB:,.0f}" for part in found))


def _parts(name: str) -> list[int]:
    """Train a network in this process; return the bytes of its parts and the peak."""
    libraries = peak_memory() or 0
    subject = case(name)
    cg = mg.comp_graph(options={"graph_opt_level": 3, "autotune": "cached"})
    step, batches = training(cg, subject, subject.network(LIBRARY))
    for _ in range(STEPS):
        step(*next(batches))
    peak, held = peak_memory() or 0, step.report().memory
    data = 2 * sum(x.nbytes for batch in subject.data() for x in batch)
    parts = [libraries, data, held.parameter_bytes, held.arena_bytes]
    return [*parts, peak - sum(parts), peak]

"""How long a training step takes in several processes, and in how many it would still be fast.

The model is that of a ring: to reduce n bytes, each of p processes sends 2 (p - 1) messages of n/p
bytes (P. Patarasuk and X. Yuan, 2009, Bandwidth optimal all-reduce algorithms for clusters of
workstations).
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from comparisons import slow_link

import minigraph as mg
from minigraph import ops
from minigraph.bench import ours
from minigraph.bench.results import SideResult
from minigraph.bench.tables import Table, milliseconds
from minigraph.bench.worker import MIN_TURN_SECONDS, Task, step_function
from minigraph.distributed import world

SMALL, LARGE = 1 << 8, 1 << 20  # floats of the reductions that show latency and bandwidth
MIB = 1 << 20
TURNS = 13
MANY = (8, 64, 512)  # processes
BACKWARD = 2 / 3  # of a step: for each product, the backward pass computes two


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer and smaller images")
    parser.add_argument("--batch-size", type=int, metavar="N", help="images of each process")
    parser.add_argument("--budget", type=float, default=20.0, metavar="S", help="of tuning")
    parser.add_argument("--bucket-mib", type=float, nargs="+", default=[4.0], metavar="MIB")
    names = ("GBIT", "MS")
    parser.add_argument("--link", type=float, nargs=2, metavar=names, help="to delay messages as")


def scaling(asked: argparse.Namespace) -> None:
    """Time training steps in several processes, and predict in how many they would be fast.

        mpiexec -n 2 python benchmarks/compare.py scaling mlp resnet18 --quick

    For each network and each size of the buckets in which gradients travel
    (`distributed.bucket_bytes`), the processes measure a step with its exchange of gradients and
    without, and the link between them.  A model says what the step should take, in those processes
    and in more.  Start it on the machines in question: `mpiexec -hosts one,two -ppn 1 -n 2 ...`
    measures the network between two.  With --link, reductions land as late as over a network of so
    many Gbit/s and ms.
    """
    team = world()
    if team.size == 1:
        command = "mpiexec -n 2 python benchmarks/compare.py scaling ..."
        raise SystemExit(f"scaling takes several processes: {command}")
    claim_core()
    if asked.link:
        gbit, ms = asked.link
        slow_link.connect(team, gbit * 1e9 / 8, ms / 1e3)
    runs = [
        measure(asked, network, int(size * MIB))
        for network in asked.networks
        for size in asked.bucket_mib
    ]
    if team.rank == 0:
        for table in (measured(runs), predicted(runs)):
            print("\n".join(table.text(shutil.get_terminal_size().columns)), end="\n\n")


# ---------------------------------------------------------------- the model


class Link(NamedTuple):
    """The link of a process: seconds until a message begins to arrive, bytes a second."""

    latency: float
    bandwidth: float

    def reduce_seconds(self, processes: int, nbytes: int) -> float:
        """Return the seconds in which processes reduce so many bytes of each."""
        return 2 * (processes - 1) * (nbytes / processes / self.bandwidth + self.latency)

    def exchange_seconds(self, processes: int, buckets: Sequence[int]) -> float:
        """Return the seconds for buckets of so many bytes, one after another."""
        return sum(self.reduce_seconds(processes, nbytes) for nbytes in buckets)

    @classmethod
    def fitted(cls, processes: int, small: tuple[int, float], large: tuple[int, float]) -> Link:
        """Return the link that explains two reductions: of so many bytes in so many seconds."""
        (a, s), (b, t) = small, large
        messages = 2 * (processes - 1)
        per_byte = processes * (t - s) / (b - a) / messages
        return cls(max(0.0, s / messages - a / processes * per_byte), 1 / per_byte)


NOMINAL = {
    "10 Gbit/s, 50 µs": Link(50e-6, 10e9 / 8),
    "100 Gbit/s, 5 µs": Link(5e-6, 100e9 / 8),
}


def step_seconds(
    alone: float, link: Link, processes: int, buckets: Sequence[int]
) -> tuple[float, float]:
    """Return the least and the most seconds of a step with its exchange.

    In the least, the backward pass hides the exchange for as long as it takes, except for the last
    bucket, which is full when the pass ends.  In the most, it hides nothing: where the processors
    move the bytes themselves, as between processes of one machine, they compute so much less.

    alone    seconds of the step without an exchange
    buckets  bytes of each, in the order in which they are full
    """
    whole = link.exchange_seconds(processes, buckets)
    last = link.reduce_seconds(processes, buckets[-1])
    return alone + max(last, whole - BACKWARD * alone), alone + whole


def hidden_share(together: float, computing: float, exchanging: float) -> float:
    """Return the share of the shorter of backward pass and exchange that a step does without.

    It is 0 where the step takes as long as both one after the other, and 1 where the longer of the
    two hides the other.
    """
    saved = (computing + exchanging - together) / min(BACKWARD * computing, exchanging)
    return min(1.0, max(0.0, saved))


# ---------------------------------------------------------------- measurements


class Run(NamedTuple):
    """The measurements of a network.

    buckets  bytes of each, in the order in which they are full
    seconds  of a step ("step"), of the same without its exchange ("alone"), of the exchange without
             the step ("exchange"), of reducing SMALL and LARGE floats ("small", "large"): one for
             each turn
    """

    network: str
    processes: int
    buckets: tuple[int, ...]
    seconds: dict[str, list[float]]

    def median(self, what: str) -> float:
        return statistics.median(self.seconds[what])

    @property
    def link(self) -> Link:
        small, large = (4 * SMALL, self.median("small")), (4 * LARGE, self.median("large"))
        return Link.fitted(self.processes, small, large)


def measure(asked: argparse.Namespace, network: str, bucket_bytes: int) -> Run:
    """Return the measurements of all processes, each with a thread; all of them call this."""
    team = world()

    def task(batch_size: int | None) -> Task:
        return Task(network, "3", "cpu", 1, batch_size, asked.quick, "float32", asked.budget)

    each = task(asked.batch_size).subject
    whole = task(each.images * team.size)
    cg, net = ours.graph_for(whole, 3), whole.subject.network(ours.LIBRARY)
    cg.set_option("distributed.bucket_bytes", bucket_bytes)
    call, batches = ours.training(cg, whole.subject, net)
    same, again = ours.training(cg, whole.subject, net, reduce=False)
    steps: dict[str, Callable[[], object]] = {
        "step": step_function(call, batches, ours.wait),
        "alone": step_function(same, again, ours.wait),
        "exchange": exchange(cg, [p.shape for p in net.parameters()]),
        "small": exchange(cg, [(SMALL,)]),
        "large": exchange(cg, [(LARGE,)]),
    }
    # Steps follow one another, as in training, and for so long that processes which share a core
    # have all had their turns.
    counts = {}
    for what, step in steps.items():
        step()
        counts[what] = team.broadcast(math.ceil(MIN_TURN_SECONDS / _seconds(step, 1)))
    seconds: dict[str, list[float]] = {what: [] for what in steps}
    for _ in range(TURNS):
        for what, step in steps.items():
            seconds[what].append(max(team.gather(_seconds(step, counts[what]))))
    buckets = tuple(t.bytes for t in call.report().traffic)
    return Run(each.title, team.size, buckets, seconds)


def exchange(cg: mg.CompGraph, shapes: Sequence[tuple[int, ...]]) -> Callable[[], object]:
    """Return a function that takes the means of float32 arrays over all processes, and no more.

    It returns the first of them, for which one can wait.
    """
    arrays = [mg.Parameter(np.zeros(shape, np.float32)) for shape in shapes]
    means = {x: ops.all_reduce(x, world(), "mean") for x in arrays}
    return cg.compile([], means[arrays[0]], means)


def claim_core() -> None:
    """Keep this process to a core of its own; processes for which none is left share all."""
    machines = world().gather(platform.node())
    core = machines[: world().rank].count(platform.node())
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[core : core + 1] or cores)


def _seconds(step: Callable[[], object], count: int) -> float:
    """Return the seconds of a call, of so many that follow one another."""
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count


# ---------------------------------------------------------------- tables


def measured(runs: Sequence[Run]) -> Table:
    """Return the measurements of each run beside the model, with the link of the run itself."""
    rows = []
    for run in runs:
        alone, step, talk = map(run.median, ("alone", "step", "exchange"))
        model = step_seconds(alone, run.link, run.processes, run.buckets)
        row = [run.network, str(run.processes), milliseconds(alone), str(len(run.buckets))]
        exchange = run.link.exchange_seconds(run.processes, run.buckets)
        row += map(milliseconds, (talk, exchange, step))
        row += [_span(*map(milliseconds, model)), f"{hidden_share(step, alone, talk):.0%}"]
        spread = max(SideResult(run.seconds[what]).spread for what in ("alone", "exchange", "step"))
        rows.append([*row, f"{alone / step:.0%}", _efficiency(alone, model), f"{spread:.0%}"])
    return Table("Measured, and by the model", MEASURED, MEASURED_HEADER, rows)


def predicted(runs: Sequence[Run]) -> Table:
    """Return the efficiency in more processes, over each run's link and over nominal ones."""
    rows = []
    for run in runs:
        alone = run.median("alone")
        for name, link in {f"of {run.processes} processes": run.link, **NOMINAL}.items():
            words = f"{link.latency * 1e6:.0f} µs, {link.bandwidth / 1e9:.3g} GB/s"
            cells = [_efficiency(alone, step_seconds(alone, link, p, run.buckets)) for p in MANY]
            rows.append(["" if name in NOMINAL else run.network, name, words, *cells])
    return Table("In more processes, by the model", PREDICTED, PREDICTED_HEADER, rows)


def _efficiency(alone: float, steps: tuple[float, float]) -> str:
    """Return the time of a step alone over the most and the least seconds of a step."""
    least, most = steps
    return _span(f"{alone / most:.0%}", f"{alone / least:.0%}")


def _span(*ends: str) -> str:
    return " to ".join(dict.fromkeys(ends))


MEASURED = (
    "The efficiency is the time of a step alone, with no exchange but beside the same processes, "
    "over that of the step. The model takes latency and bandwidth from two reductions. Hidden is "
    "the share of what can be: of the shorter of the exchange and the backward pass, two thirds of "
    "the step alone. The spread is the largest of the three times."
)
MEASURED_HEADER = (
    *("network", "processes", "step alone", "buckets", "exchange", "by the model", "step"),
    *("by the model", "hidden", "efficiency", "by the model", "spread"),
)
PREDICTED = "The efficiency if each process had such a link of its own."
PREDICTED_HEADER = (
    *("network", "link", "latency, bandwidth"),
    *(f"efficiency in {p}" for p in MANY),
)

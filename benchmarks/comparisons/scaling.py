"""Measure a training step in several processes, and predict its time in more of them.

The model is a ring: to reduce n bytes, each of p processes sends 2 (p - 1) messages of n/p
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

SMALL, LARGE = 1 << 8, 1 << 20  # floats of the reductions that measure latency and bandwidth
MIB = 1 << 20
TURNS = 13
PROCESSES = (8, 64, 512)  # for which the model predicts
BACKWARD = 2 / 3  # share of a step's time: for each product, the backward pass computes two


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer and smaller images")
    parser.add_argument("--batch-size", type=int, metavar="N", help="images of each process")
    parser.add_argument("--budget", type=float, default=20.0, metavar="S", help="of tuning")
    parser.add_argument("--bucket-mib", type=float, nargs="+", default=[4.0], metavar="MIB")
    names = ("GBIT", "MS")
    parser.add_argument(
        "--link", type=float, nargs=2, metavar=names, help="delay messages as on this link"
    )


def scaling(args: argparse.Namespace) -> None:
    """Time training steps in several processes, and predict their time in more.

        mpiexec -n 2 python benchmarks/compare.py scaling mlp resnet18 --quick

    For each network and each size of the buckets in which gradients travel
    (`distributed.bucket_bytes`), the processes time a step with and without its exchange of
    gradients, and the link between them.  A model predicts the time of the step in those processes
    and in more.  Start it on the machines in question: `mpiexec -hosts one,two -ppn 1 -n 2 ...`
    measures the network between two.  With --link, reductions arrive as late as over a network of
    GBIT Gbit/s with a latency of MS ms.
    """
    team = world()
    if team.size == 1:
        command = "mpiexec -n 2 python benchmarks/compare.py scaling ..."
        raise SystemExit(f"scaling takes several processes: {command}")
    claim_core()
    if args.link:
        gbit, ms = args.link
        slow_link.connect(team, gbit * 1e9 / 8, ms / 1e3)
    runs = [
        measure(args, network, int(size * MIB))
        for network in args.networks
        for size in args.bucket_mib
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
        """Return the seconds in which processes reduce `nbytes` bytes of each."""
        return 2 * (processes - 1) * (nbytes / processes / self.bandwidth + self.latency)

    def exchange_seconds(self, processes: int, buckets: Sequence[int]) -> float:
        """Return the seconds to reduce buckets of these bytes, one after another."""
        return sum(self.reduce_seconds(processes, nbytes) for nbytes in buckets)

    @classmethod
    def fitted(cls, processes: int, small: tuple[int, float], large: tuple[int, float]) -> Link:
        """Return the link that explains two reductions, each given by its bytes and its seconds."""
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
    """Return the minimum and the maximum of the seconds of a step with its exchange.

    The minimum is for a backward pass that hides the exchange until the pass ends; the last bucket
    is full only then.  The maximum is for a pass that hides nothing: where the processors move the
    bytes themselves, as between processes of one machine, they compute less in that time.

    alone    seconds of the step without an exchange
    buckets  bytes of each bucket, in the order in which they are full
    """
    exchange = link.exchange_seconds(processes, buckets)
    last = link.reduce_seconds(processes, buckets[-1])
    return alone + max(last, exchange - BACKWARD * alone), alone + exchange


def hidden_share(together: float, computing: float, exchanging: float) -> float:
    """Return the share that is hidden of the shorter of backward pass and exchange.

    It is 0 if the step takes as long as both one after the other, and 1 if the longer hides the
    shorter.
    """
    saved = (computing + exchanging - together) / min(BACKWARD * computing, exchanging)
    return min(1.0, max(0.0, saved))


# ---------------------------------------------------------------- measurements


class Run(NamedTuple):
    """The measurements of a network.

    buckets  bytes of each bucket, in the order in which they are full
    seconds  one for each turn: of a step ("step"), of the step without its exchange ("alone"), of
             the exchange alone ("exchange"), of reducing SMALL and LARGE floats ("small", "large")
    """

    network: str
    processes: int
    buckets: tuple[int, ...]
    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    @property
    def link(self) -> Link:
        small, large = (4 * SMALL, self.median("small")), (4 * LARGE, self.median("large"))
        return Link.fitted(self.processes, small, large)


def measure(args: argparse.Namespace, network: str, bucket_bytes: int) -> Run:
    """Return the measurements of all processes, each with one thread; all must call this."""
    team = world()

    def task(batch_size: int | None) -> Task:
        return Task(network, "3", "cpu", 1, batch_size, args.quick, "float32", args.budget)

    subject = task(args.batch_size).subject  # of one process
    shared = task(subject.images * team.size)
    cg, net = ours.graph_for(shared, 3), shared.subject.network(ours.LIBRARY)
    cg.set_option("distributed.bucket_bytes", bucket_bytes)
    step, batches = ours.training(cg, shared.subject, net)
    alone, batches_alone = ours.training(cg, shared.subject, net, reduce=False)
    calls: dict[str, Callable[[], object]] = {
        "step": step_function(step, batches, ours.wait),
        "alone": step_function(alone, batches_alone, ours.wait),
        "exchange": exchange(cg, [p.shape for p in net.parameters()]),
        "small": exchange(cg, [(SMALL,)]),
        "large": exchange(cg, [(LARGE,)]),
    }
    # Steps follow one another, as in training, and for so long that processes which share a core
    # have all had their turns.
    counts = {}
    for name, call in calls.items():
        call()
        counts[name] = team.broadcast(math.ceil(MIN_TURN_SECONDS / _seconds(call, 1)))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            seconds[name].append(max(team.gather(_seconds(call, counts[name]))))
    buckets = tuple(t.bytes for t in step.report().traffic)
    return Run(subject.title, team.size, buckets, seconds)


def exchange(cg: mg.CompGraph, shapes: Sequence[tuple[int, ...]]) -> Callable[[], object]:
    """Return a function that only averages float32 arrays over all processes.

    It returns the first mean, for which the caller can wait.
    """
    arrays = [mg.Parameter(np.zeros(shape, np.float32)) for shape in shapes]
    means = {x: ops.all_reduce(x, world(), "mean") for x in arrays}
    return cg.compile([], means[arrays[0]], means)


def claim_core() -> None:
    """Restrict this process to one core; processes beyond the number of cores share all."""
    machines = world().gather(platform.node())
    core = machines[: world().rank].count(platform.node())
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[core : core + 1] or cores)


def _seconds(call: Callable[[], object], count: int) -> float:
    """Return the mean seconds of `count` calls that follow one another."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


# ---------------------------------------------------------------- tables


def measured(runs: Sequence[Run]) -> Table:
    """Return the measurements of each run beside the model over the link of that run."""
    rows = []
    for run in runs:
        alone, step, exchange = map(run.median, ("alone", "step", "exchange"))
        model = step_seconds(alone, run.link, run.processes, run.buckets)
        row = [run.network, str(run.processes), milliseconds(alone), str(len(run.buckets))]
        model_exchange = run.link.exchange_seconds(run.processes, run.buckets)
        row += map(milliseconds, (exchange, model_exchange, step))
        row += [_span(*map(milliseconds, model)), f"{hidden_share(step, alone, exchange):.0%}"]
        spread = max(SideResult(run.seconds[name]).spread for name in ("alone", "exchange", "step"))
        rows.append([*row, f"{alone / step:.0%}", _efficiency(alone, model), f"{spread:.0%}"])
    return Table("Measured, and by the model", MEASURED, MEASURED_HEADER, rows)


def predicted(runs: Sequence[Run]) -> Table:
    """Return the efficiency in more processes, over each run's link and over nominal ones."""
    rows = []
    for run in runs:
        alone = run.median("alone")
        for name, link in {f"of {run.processes} processes": run.link, **NOMINAL}.items():
            link_cell = f"{link.latency * 1e6:.0f} µs, {link.bandwidth / 1e9:.3g} GB/s"
            cells = [
                _efficiency(alone, step_seconds(alone, link, p, run.buckets)) for p in PROCESSES
            ]
            rows.append(["" if name in NOMINAL else run.network, name, link_cell, *cells])
    return Table("In more processes, by the model", PREDICTED, PREDICTED_HEADER, rows)


def _efficiency(alone: float, steps: tuple[float, float]) -> str:
    """Return the time of a step alone over the maximum and the minimum of a step."""
    minimum, maximum = steps
    return _span(f"{alone / maximum:.0%}", f"{alone / minimum:.0%}")


def _span(*bounds: str) -> str:
    return " to ".join(dict.fromkeys(bounds))


MEASURED = (
    "The efficiency is the time of a step alone, with no exchange but beside the same processes, "
    "over that of the step. The model takes latency and bandwidth from two reductions. Hidden is "
    "the hidden share of the shorter of the exchange and the backward pass, which is two thirds of "
    "the step alone. The spread is the largest of the three times."
)
MEASURED_HEADER = (
    *("network", "processes", "step alone", "buckets", "exchange", "by the model", "step"),
    *("by the model", "hidden", "efficiency", "by the model", "spread"),
)
PREDICTED = "The efficiency if each process had its own link of this kind."
PREDICTED_HEADER = (
    *("network", "link", "latency, bandwidth"),
    *(f"efficiency in {p}" for p in PROCESSES),
)

"""How long a training step takes in several processes, and in how many it would still be fast.

The model is that of a ring: to reduce n bytes, each of p processes sends 2 (p - 1) messages of n/p
bytes (P. Patarasuk and X. Yuan, 2009, Bandwidth optimal all-reduce algorithms for clusters of
workstations).
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import platform
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from comparisons import slow_link
from msgspec.json import Decoder

from minigraph.bench import ours
from minigraph.bench.results import SideResult
from minigraph.bench.tables import Table, milliseconds
from minigraph.bench.worker import (
    BACKWARD,
    LONG,
    Task,
    hidden_share,
    seconds,
    seconds_of_all,
    take_cores,
)
from minigraph.cache.machine import processor
from minigraph.distributed import world
from minigraph.errors import GraphError
from minigraph.platform.records import Record, decode, encode
from minigraph.platform.text_file import write_text

SMALL, LARGE = 1 << 8, 1 << 20  # floats of the reductions that show latency and bandwidth
MIB = 1 << 20
TURNS = 13
MANY = (8, 64, 512)  # processes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer and smaller images")
    parser.add_argument("--batch-size", type=int, metavar="N", help="images of each process")
    parser.add_argument("--budget", type=float, default=20.0, metavar="S", help="of tuning")
    parser.add_argument("--bucket-mib", type=float, nargs="+", default=[4.0], metavar="MIB")
    names = ("GBIT", "MS")
    parser.add_argument("--link", type=float, nargs=2, metavar=names, help="to delay messages as")
    parser.add_argument("--json", type=Path, metavar="FILE", help="holds runs, and gets this one")


def scaling(asked: argparse.Namespace) -> None:
    """Time training steps in several processes, and predict in how many they would be fast.

        mpiexec -n 2 python benchmarks/compare.py scaling mlp resnet18 --quick --json scaling.json
        mpiexec -n 4 python benchmarks/compare.py scaling mlp resnet18 --quick --json scaling.json

    Each run measures a step with its exchange of gradients and without, and the link between the
    processes, for each network and each size of the buckets in which gradients travel
    (`distributed.bucket_bytes`).  A model says what the step should take, in those processes and in
    more; the tables show it beside what was measured in all runs that the file holds.  Start it on
    the machines in question: `mpiexec -hosts one,two -ppn 1 -n 2 ...` measures the network between
    two.  With --link, reductions land as late as over a network of so many Gbit/s and ms.
    """
    team = world()
    if team.size == 1:
        command = "mpiexec -n 2 python benchmarks/compare.py scaling ..."
        raise SystemExit(f"scaling takes several processes: {command}")
    kept = asked.json.read_text() if team.rank == 0 and asked.json and asked.json.exists() else "[]"
    try:
        runs = decode(RUNS, team.broadcast(kept))
    except ValueError as error:
        raise GraphError(f"{asked.json} {error}") from None  # in all, so it is printed once
    take_cores(1)
    if asked.link:
        gbit, ms = asked.link
        slow_link.connect(team, gbit * 1e9 / 8, ms / 1e3)
    for network in asked.networks:
        runs += [measure(asked, network, int(size * MIB)) for size in asked.bucket_mib]
    if team.rank:
        return
    if asked.json:
        write_text(asked.json, encode(runs, indent=1) + "\n")
    for table in (checks(runs), predictions(runs)):
        print("\n".join(table.text(shutil.get_terminal_size().columns)), end="\n\n")


# ---------------------------------------------------------------- the model


class Link(NamedTuple):
    """What carries a process's messages: seconds until one begins to arrive, bytes a second."""

    latency: float
    bandwidth: float

    def shared(self, times: float) -> Link:
        """Return the link as it is for processes that have so many times less of a core each."""
        return Link(self.latency * times, self.bandwidth / times)

    def reduce_seconds(self, processes: int, nbytes: int) -> float:
        """Return the seconds in which processes reduce so many bytes of each."""
        return 2 * (processes - 1) * (nbytes / processes / self.bandwidth + self.latency)

    @classmethod
    def fitted(cls, processes: int, small: tuple[int, float], large: tuple[int, float]) -> Link:
        """Return the link by which two reductions take what they took: bytes and seconds."""
        (a, s), (b, t) = small, large
        messages = 2 * (processes - 1)
        per_byte = processes * (t - s) / (b - a) / messages
        return cls(max(0.0, s / messages - a / processes * per_byte), 1 / per_byte)


NOMINAL = {
    "10 Gbit/s, 50 µs": Link(50e-6, 10e9 / 8),
    "100 Gbit/s, 5 µs": Link(5e-6, 100e9 / 8),
}


def exchange_seconds(link: Link, processes: int, buckets: Sequence[int]) -> float:
    """Return the seconds in which processes reduce buckets of so many bytes, one after another."""
    return sum(link.reduce_seconds(processes, nbytes) for nbytes in buckets)


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
    whole = exchange_seconds(link, processes, buckets)
    last = link.reduce_seconds(processes, buckets[-1])
    return alone + max(last, whole - BACKWARD * alone), alone + whole


# ---------------------------------------------------------------- measurements


class Run(Record):
    """What processes measured of a network.

    buckets  bytes of each, in the order in which they are full
    here     processes on the machine of process 0
    seconds  of a step ("step"), of the same without its exchange ("alone"), of the exchange without
             the step ("exchange"), of reducing SMALL and LARGE floats ("small", "large"): one for
             each turn
    """

    date: str
    processor: str
    cpus: int
    network: str
    processes: int
    here: int
    buckets: tuple[int, ...]
    seconds: dict[str, tuple[float, ...]]

    def median(self, what: str) -> float:
        return statistics.median(self.seconds[what])

    def spread(self, what: str) -> float:
        return SideResult([*self.seconds[what]]).spread

    @property
    def crowd(self) -> float:
        """How many processes share a core: each moves its bytes itself, when it has its turn."""
        return max(1.0, self.here / self.cpus)

    @property
    def link(self) -> Link:
        small, large = (4 * SMALL, self.median("small")), (4 * LARGE, self.median("large"))
        return Link.fitted(self.processes, small, large)


RUNS = Decoder(list[Run])


def measure(asked: argparse.Namespace, network: str, bucket_bytes: int) -> Run:
    """Return what the processes measure, each with a thread; all of them call this."""
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
        "step": ours.until_done(call, batches, whole),
        "alone": ours.until_done(same, again, whole),
        "exchange": ours.exchange(cg, [p.shape for p in net.parameters()]),
        "small": ours.exchange(cg, [(SMALL,)]),
        "large": ours.exchange(cg, [(LARGE,)]),
    }
    # Steps follow one another, as in training, and for so long that processes which share a core
    # have all had their turns.
    rows = {what: _in_a_row(step) for what, step in steps.items()}
    taken: dict[str, list[float]] = {what: [] for what in steps}
    for _ in range(TURNS):
        for what, (row, count) in rows.items():
            taken[what].append(seconds_of_all(row) / count)
    return Run(
        datetime.date.today().isoformat(),
        processor(),
        os.cpu_count() or 1,
        each.title,
        team.size,
        team.gather(platform.node()).count(platform.node()),
        tuple(t.bytes for t in call.report().traffic),
        {what: tuple(found) for what, found in taken.items()},
    )


def _in_a_row(step: Callable[[], object]) -> tuple[Callable[[], None], int]:
    """Return as many calls of a step as are not short, as one, and how many these are."""
    count = world().broadcast(math.ceil(LONG / seconds(step)))

    def row() -> None:
        for _ in range(count):
            step()

    return row, count


# ---------------------------------------------------------------- tables


def checks(runs: Sequence[Run]) -> Table:
    """Return what each run measured beside what the model says.

    The link is that of the run itself, or of the one before it with fewer processes: then the model
    says what will be.  Where processes share cores, it is as much slower as they are more.
    """
    rows = []
    for i, run in enumerate(runs):
        before = [r for r in runs[:i] if r.network == run.network and r.processes < run.processes]
        alone, step = run.median("alone"), run.median("step")
        for source in [*before[-1:], run]:
            link, processes = source.link.shared(run.crowd / source.crowd), run.processes
            exchange = exchange_seconds(link, processes, run.buckets)
            steps = step_seconds(alone, link, processes, run.buckets)
            facts = [run.network, str(processes), f"{source.processes} processes"]
            talk = run.median("exchange")
            facts += [milliseconds(alone), str(len(run.buckets))]
            facts += map(milliseconds, (talk, exchange, step))
            facts += [_span(*map(milliseconds, steps)), f"{hidden_share(step, alone, talk):.0%}"]
            facts.append(f"{alone / step:.0%}")
            spread = max(run.spread(what) for what in ("alone", "exchange", "step"))
            rows.append([*facts, _efficiency(alone, steps), f"{spread:.0%}"])
    return Table("Measured, and by the model", CHECKS, CHECKS_HEADER, rows)


def predictions(runs: Sequence[Run]) -> Table:
    """Return the efficiency in more processes: for each network, of the last run with fewest."""
    rows = []
    for network in dict.fromkeys(run.network for run in runs):
        run = min((r for r in reversed(runs) if r.network == network), key=lambda r: r.processes)
        alone = run.median("alone")
        links = {f"of {run.processes} processes": run.link, **NOMINAL}
        for i, (name, link) in enumerate(links.items()):
            words = f"{link.latency * 1e6:.0f} µs, {link.bandwidth / 1e9:.3g} GB/s"
            cells = [_efficiency(alone, step_seconds(alone, link, p, run.buckets)) for p in MANY]
            rows.append(["" if i else network, name, words, *cells])
    return Table("In more processes, by the model", PREDICTIONS, PREDICTIONS_HEADER, rows)


def _efficiency(alone: float, steps: tuple[float, float]) -> str:
    """Return what a step alone takes of the most and of the least seconds of a step."""
    least, most = steps
    return _span(f"{alone / most:.0%}", f"{alone / least:.0%}")


def _span(*ends: str) -> str:
    return " to ".join(dict.fromkeys(ends))


CHECKS = (
    "The efficiency is the time of a step alone, with no exchange but beside the same processes, "
    "over that of the step. The model takes latency and bandwidth from two reductions by the "
    "processes in the third column. Hidden is the share of what can be: of the shorter of the "
    "exchange and the backward pass, two thirds of the step alone. The spread is the largest of "
    "the three times."
)
CHECKS_HEADER = (
    *("network", "processes", "link measured in", "step alone", "buckets", "exchange"),
    *("by the model", "step", "by the model", "hidden", "efficiency", "by the model", "spread"),
)
PREDICTIONS = "What the efficiency would be if each process had such a link of its own."
PREDICTIONS_HEADER = (
    *("network", "link", "latency, bandwidth"),
    *(f"efficiency in {p}" for p in MANY),
)

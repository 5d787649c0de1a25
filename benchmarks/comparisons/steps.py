"""Training steps at level 3 beside the same steps with another option, library or amount of memory.

Steps take turns; times are medians, with their quartiles in brackets.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import NamedTuple
from unittest import mock

import numpy as np

import minigraph as mg
from minigraph.bench.cases import NETWORKS, case
from minigraph.bench.ours import LIBRARY, training
from minigraph.bench.plan import PEERS
from minigraph.bench.results import CHANNELS_LAST
from minigraph.bench.worker import Task, Worker, run_times
from minigraph.devices.cpu import onednn
from minigraph.options import num_threads
from minigraph.platform.records import encode

MIB = 1 << 20
PATIENCE = 600.0  # seconds for an answer of a worker; a first call tunes
SHARES = (0.8, 0.65, 0.5, 0.4)  # of the arena
WARM_UP = 2  # turns, in which memory is touched for the first time


class Side(NamedTuple):
    """A step that takes turns with others.

    turn   returns the seconds of a step
    arena  bytes of its intermediate results; 0 where nobody knows
    note   what else there is to say
    """

    label: str
    turn: Callable[[], float]
    arena: int = 0
    note: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-size", type=int, metavar="N", help="images in a step")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller images")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tuning")
    parser.add_argument("--turns", type=int, default=9)


def memory_limit(asked: argparse.Namespace) -> None:
    """Time training steps that keep to shares of the memory of their intermediate results.

    The option is `graph_opt.memory_limit`; the note is what is computed again.
    """

    def sides(network: str, stack: ExitStack) -> Iterator[Side]:
        whole = _side("no limit", asked, network)
        yield whole
        for share in SHARES:
            limit = int(share * whole.arena)
            try:
                yield _side(f"{share:.0%}", asked, network, {"graph_opt.memory_limit": limit})
            except mg.GraphError as error:
                print(error)
                return

    _compare(asked, sides)


def without_onednn(asked: argparse.Namespace) -> None:
    """Time training steps with oneDNN, and with minigraph's own kernels alone.

    Other processors have only these.  The note is the share of the steps that NumPy computes.
    """

    def sides(network: str, stack: ExitStack) -> Iterator[Side]:
        yield _side("oneDNN", asked, network)
        with mock.patch.object(onednn, "library", return_value=None):
            yield _side("own kernels", asked, network)

    _compare(asked, sides)


def bfloat16(asked: argparse.Namespace) -> None:
    """Time training steps in bfloat16 beside float32, also of PyTorch where it is installed.

    Each side is a process of its own, as in `minigraph bench`; PyTorch has the channels last, a
    fused Adam and autocast.
    """
    programs = [("minigraph", "ours", "3")]
    if find_spec("torch"):
        programs.append(("PyTorch", PEERS["torch"].program, CHANNELS_LAST))

    def sides(network: str, stack: ExitStack) -> Iterator[Side]:
        for library, program, setting in programs:
            for precision in ("float32", "bfloat16"):
                threads, quick = num_threads(None), asked.quick
                sizes = threads, asked.batch_size, quick, precision, asked.budget
                task = encode(Task(network, setting, "cpu", *sizes))
                command = [sys.executable, "-m", f"minigraph.bench.{program}", task]
                worker = Worker(command, os.environ, PATIENCE)
                stack.callback(worker.kill)
                yield Side(
                    f"{library}, {precision}",
                    lambda worker=worker: worker.ask("turn", PATIENCE)["step"],
                )

    _compare(asked, sides)


def _side(
    label: str, asked: argparse.Namespace, network: str, options: dict[str, object] | None = None
) -> Side:
    subject = case(network, asked.batch_size, asked.quick)
    given = {"graph_opt_level": 3, "autotune.budget": asked.budget, **(options or {})}
    step, batches = training(mg.comp_graph("cpu", given), subject, subject.network(LIBRARY))
    float(step(*next(batches)))
    report = step.report()
    fired = [record.fired for record in report.passes if record.name == "recompute"]
    notes = [f"{count} {name}" for each in fired for name, count in each.items()]
    if report.numpy:
        notes.append(f"{len(report.numpy) / len(report.steps):.0%} of the steps in NumPy")
    turn = lambda: np.median(run_times(lambda: float(step(*next(batches)))))  # noqa: E731
    return Side(label, turn, report.memory.arena_bytes, ", ".join(notes))


def _compare(
    asked: argparse.Namespace, sides_of: Callable[[str, ExitStack], Iterator[Side]]
) -> None:
    """Print a row for each side of each network, with ratios to the first side."""
    print_row("network", "", "arena, MiB", "of the first", "a step, ms", "of the first", "")
    print_row(*["---"] * 7)
    for network in asked.networks:
        with ExitStack() as stack:
            sides = list(sides_of(network, stack))
            taken = take_turns([side.turn for side in sides], asked.turns)
        for side, times in zip(sides, taken, strict=True):
            arena = f"{side.arena / MIB:.0f}" if side.arena else "-"
            share = f"{side.arena / sides[0].arena:.0%}" if side.arena else "-"
            ratio = f"{np.median(times) / np.median(taken[0]):.2f}"
            title = NETWORKS[network].title if side is sides[0] else ""
            print_row(title, side.label, arena, share, median_ms(times), ratio, side.note)


def take_turns(sides: Sequence[Callable[[], float]], turns: int) -> np.ndarray:
    """Return what the sides gave, [sides, turns]; every second turn goes backwards."""
    rows = []
    for turn in range(WARM_UP + turns):
        order = range(len(sides))[:: -1 if turn % 2 else 1]
        seconds = {side: sides[side]() for side in order}
        rows.append([seconds[side] for side in range(len(sides))])
    return np.array(rows[WARM_UP:]).T


def median_ms(seconds: np.ndarray) -> str:
    """Return the median of seconds and its quartiles, in milliseconds: "12.3 (11.8, 14)"."""
    each = np.quantile(seconds, [0.25, 0.5, 0.75]) * 1e3
    low, median, high = (f"{x:.0f}" if x >= 100 else f"{x:.3g}" for x in each)
    return f"{median} ({low}, {high})"


def print_row(*cells: str) -> None:
    """Print a row of a table as soon as it is known."""
    print(f"| {' | '.join(cells)} |", flush=True)

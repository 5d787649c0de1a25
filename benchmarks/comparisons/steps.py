"""Compare training steps at level 3 with another option, library or memory limit.

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
PATIENCE = 600.0  # seconds that a worker has to answer; its first call tunes
SHARES = (0.8, 0.65, 0.5, 0.4)  # of the arena
WARM_UP = 2  # turns that are not counted: they touch memory for the first time


class Side(NamedTuple):
    """A step that takes turns with others.

    turn   returns the seconds of a step
    arena  bytes of its intermediate results; 0 if unknown
    note   the last column of its row
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


def memory_limit(args: argparse.Namespace) -> None:
    """Time training steps that keep to shares of the memory of their intermediate results.

    The option is `graph_opt.memory_limit`; the note lists the ops that are computed again.
    """

    def sides(network: str, stack: ExitStack) -> Iterator[Side]:
        whole = _side("no limit", args, network)
        yield whole
        for share in SHARES:
            limit = int(share * whole.arena)
            try:
                yield _side(f"{share:.0%}", args, network, {"graph_opt.memory_limit": limit})
            except mg.GraphError as error:
                print(error)
                return

    _compare(args, sides)


def without_onednn(args: argparse.Namespace) -> None:
    """Time training steps with oneDNN, and with minigraph's own kernels alone.

    On other processors these are the only kernels.  The note is the share of the steps that NumPy
    computes.
    """

    def sides(network: str, stack: ExitStack) -> Iterator[Side]:
        yield _side("oneDNN", args, network)
        with mock.patch.object(onednn, "library", return_value=None):
            yield _side("own kernels", args, network)

    _compare(args, sides)


def bfloat16(args: argparse.Namespace) -> None:
    """Time training steps in bfloat16 beside float32, also of PyTorch where it is installed.

    Each side runs in its own process, as in `minigraph bench`; PyTorch runs with the channels last,
    a fused Adam and autocast.
    """
    programs = [("minigraph", "ours", "3")]
    if find_spec("torch"):
        programs.append(("PyTorch", PEERS["torch"].program, CHANNELS_LAST))

    def sides(network: str, stack: ExitStack) -> Iterator[Side]:
        for library, program, setting in programs:
            for precision in ("float32", "bfloat16"):
                threads, quick = num_threads(None), args.quick
                sizes = threads, args.batch_size, quick, precision, args.budget
                task = encode(Task(network, setting, "cpu", *sizes))
                command = [sys.executable, "-m", f"minigraph.bench.{program}", task]
                worker = Worker(command, os.environ, PATIENCE)
                stack.callback(worker.kill)
                yield Side(
                    f"{library}, {precision}",
                    lambda worker=worker: worker.ask("turn", PATIENCE)["step"],
                )

    _compare(args, sides)


def _side(
    label: str, args: argparse.Namespace, network: str, options: dict[str, object] | None = None
) -> Side:
    subject = case(network, args.batch_size, args.quick)
    options = {"graph_opt_level": 3, "autotune.budget": args.budget, **(options or {})}
    step, batches = training(mg.comp_graph("cpu", options), subject, subject.network(LIBRARY))
    float(step(*next(batches)))
    report = step.report()
    fired = [record.fired for record in report.passes if record.name == "recompute"]
    notes = [f"{count} {name}" for counts in fired for name, count in counts.items()]
    if report.numpy:
        notes.append(f"{len(report.numpy) / len(report.steps):.0%} of the steps in NumPy")
    turn = lambda: np.median(run_times(lambda: float(step(*next(batches)))))  # noqa: E731
    return Side(label, turn, report.memory.arena_bytes, ", ".join(notes))


def _compare(
    args: argparse.Namespace, sides_of: Callable[[str, ExitStack], Iterator[Side]]
) -> None:
    """Print a row for each side of each network, with ratios to the first side."""
    print_row("network", "", "arena, MiB", "of the first", "a step, ms", "of the first", "")
    print_row(*["---"] * 7)
    for network in args.networks:
        with ExitStack() as stack:
            sides = list(sides_of(network, stack))
            seconds = take_turns([side.turn for side in sides], args.turns)
        for side, times in zip(sides, seconds, strict=True):
            arena = f"{side.arena / MIB:.0f}" if side.arena else "-"
            share = f"{side.arena / sides[0].arena:.0%}" if side.arena else "-"
            ratio = f"{np.median(times) / np.median(seconds[0]):.2f}"
            title = NETWORKS[network].title if side is sides[0] else ""
            print_row(title, side.label, arena, share, median_ms(times), ratio, side.note)


def take_turns(sides: Sequence[Callable[[], float]], turns: int) -> np.ndarray:
    """Return the seconds of each side, [sides, turns]; every second turn is in reverse order."""
    rows = []
    for turn in range(WARM_UP + turns):
        order = range(len(sides))[:: -1 if turn % 2 else 1]
        seconds = {side: sides[side]() for side in order}
        rows.append([seconds[side] for side in range(len(sides))])
    return np.array(rows[WARM_UP:]).T


def median_ms(seconds: np.ndarray) -> str:
    """Return the median of seconds and its quartiles, in milliseconds: "12.3 (11.8, 14)"."""
    quartiles = np.quantile(seconds, [0.25, 0.5, 0.75]) * 1e3
    low, median, high = (f"{x:.0f}" if x >= 100 else f"{x:.3g}" for x in quartiles)
    return f"{median} ({low}, {high})"


def print_row(*cells: str) -> None:
    """Print a row of a table at once, also into a pipe."""
    print(f"| {' | '.join(cells)} |", flush=True)

"""The command `minigraph bench`: its arguments, its files, what it prints."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tqdm import tqdm

import minigraph as mg
from minigraph.bench.cases import NAMES, PRECISIONS, USUAL
from minigraph.bench.measure import measure_cases
from minigraph.bench.page import markdown_page, terminal_lines
from minigraph.bench.plan import PEERS, Plan
from minigraph.bench.results import FILE, LEVELS, Results
from minigraph.errors import OptionError
from minigraph.options import num_threads

PAGE = "README.md"  # web sites of repositories show it with its folder
PLOTS = ("levels.svg", "roofline.svg", "kernels.svg")
INTERRUPTED = 130  # the exit status of a program that Ctrl-C ended
QUICK_PEERS = ("torch", "jax")
# On two cores it takes two minutes where no peer is installed.
QUICK: dict[str, Any] = {
    "repeats": 5,
    "warmup": 2,
    "limit": 3.0,
    "budget": 3.0,
    "twice": False,
    "models": ("abc", "abplusc", "mlp", "alexnet", "resnet18"),
    "peers": QUICK_PEERS,
}
FULL: dict[str, Any] = {
    "repeats": 11,
    "warmup": 6,
    "limit": 600.0,
    "budget": 120.0,
    "twice": True,
    "models": NAMES,
    "peers": tuple(PEERS),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of the command; where they stand for a Plan's fields, its names."""
    add = parser.add_argument
    add("--quick", action="store_true", help="small images, few turns: about two minutes")
    add("--device", choices=("cpu", "cuda"), help="default: $MINIGRAPH_DEVICE, else cpu")
    add("--models", type=_names(NAMES), metavar="A,B", help=f"of {', '.join(NAMES)}")
    add("--levels", type=_levels, default=LEVELS, metavar="0,3", help="default: 0,1,2,3")
    add("--precision", choices=tuple(PRECISIONS), default=USUAL, help=f"default: {USUAL}")
    add("--budget", type=_seconds, metavar="S", help="seconds of tuning per compile, at most")
    once = "start each side in one process only, so that there are no warm starts"
    add("--once", dest="twice", action="store_const", const=False, help=once)
    add("--untuned", action="store_true", help="also run networks with heuristics only")
    add("--batch-size", type=_count, metavar="N", help="images per step of every network")
    peers = f"of {', '.join(PEERS)}, or none (default: all; with --quick {', '.join(QUICK_PEERS)})"
    add("--peers", type=_names(PEERS), metavar="A,B", help=peers)
    add("--threads", type=_count, metavar="N", help="default: one per core")
    add("--repeats", type=_count, metavar="N", help="turns of each side")
    add("--out", type=Path, metavar="DIR", help="write the results, a page and plots to DIR")
    add(
        "--render",
        type=Path,
        metavar="DIR",
        help="measure nothing; write DIR's page and plots again",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no integer >= 1")
    return int(text)


def _seconds(text: str) -> float:
    return float(_count(text))


def _names(known: Sequence[str] | dict[str, Any]) -> Callable[[str], tuple[str, ...]]:
    def names(text: str) -> tuple[str, ...]:
        if text == "none":
            return ()
        given = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        for name in given:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return given

    return names


def _levels(text: str) -> tuple[int, ...]:
    return tuple(map(int, _names(tuple(map(str, LEVELS)))(text)))


def bench(asked: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    """Do what was asked for: return the results as data, as lines, and the exit status."""
    if asked.render:
        results = Results.read(asked.render)
        names = render(results, asked.render)
        return results.data(), [f"{asked.render / name} is written" for name in names], 0
    plan = planned(asked)
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)  # a failure here costs no minutes
    results = _measured(plan, asked.out)
    lines = terminal_lines(results)
    if asked.out:
        results.write(asked.out)
        lines += ["", f"{', '.join([FILE, *render(results, asked.out)])} in {asked.out}"]
    return results.data(), lines, INTERRUPTED if results.interrupted else 0


def planned(asked: argparse.Namespace) -> Plan:
    """Return what is to be measured; OptionError if the device cannot do it."""
    device = mg.comp_graph(asked.device).device
    if device == "cpu" and asked.precision != USUAL:
        raise OptionError(
            f"--precision {asked.precision} takes --device cuda; a CPU computes in {USUAL}"
        )
    plan = {**(QUICK if asked.quick else FULL), "batch_size": None}
    names = {field.name for field in fields(Plan)}
    plan |= {k: v for k, v in vars(asked).items() if k in names and v is not None}
    return Plan(**{**plan, "device": device, "threads": num_threads(asked.threads)})


def _measured(plan: Plan, folder: Path | None) -> Results:
    """Measure, with a bar that says how much time is left; write to a folder after each case."""
    options = {
        "device": plan.device,
        "threads": plan.threads,
        "precision": plan.precision,
        "levels": list(plan.levels),
        "untuned": plan.untuned,
        "peers": list(plan.peers),
        "repeats": plan.repeats,
        "batch size": plan.batch_size or "by model",
        "tuning, s": plan.budget,
        "quick": plan.quick,
    }
    form = "{l_bar}{bar}| {elapsed}, about {remaining} left"
    with tqdm(total=plan.seconds(), bar_format=form, leave=False) as bar:
        running = 0.0

        def progress(what: str, seconds: float) -> None:
            nonlocal running
            bar.set_description_str(what, refresh=False)
            bar.update(running)  # it is done when the next begins
            bar.refresh()
            running = seconds

        def keep(results: Results) -> None:
            if folder:
                results.write(folder)

        return measure_cases(plan, options, progress, keep)


def render(results: Results, folder: Path) -> list[str]:
    """Write the page and, where matplotlib is installed, the plots; return their names."""
    plots: list[str] = []
    if find_spec("matplotlib"):
        for name in PLOTS:
            (folder / name).unlink(missing_ok=True)
        subprocess.run([sys.executable, "-m", "minigraph.bench.plot", str(folder)], check=True)
        plots = [name for name in PLOTS if (folder / name).exists()]
    (folder / PAGE).write_text(markdown_page(results, plots))
    return [PAGE, *plots]

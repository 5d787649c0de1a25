"""The command `minigraph bench`: its arguments, its files, what it prints."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tqdm import tqdm

import minigraph as mg
from minigraph.bench import measure, results
from minigraph.bench.cases import NAMES
from minigraph.bench.cost import cost
from minigraph.bench.page import page, terminal
from minigraph.bench.plan import PEERS, Plan
from minigraph.bench.precision import PRECISIONS, USUAL
from minigraph.bench.results import LEVELS, Results
from minigraph.errors import OptionError
from minigraph.options import num_threads

PAGE = "README.md"  # which is shown where its folder is
PLOTS = ("levels.svg", "roofline.svg", "kernels.svg")
INTERRUPTED = 130  # as of a program that Ctrl-C ended
# Two minutes of all but the starts of PyTorch's compiled steps, on two cores.
QUICK: dict[str, Any] = {"repeats": 5, "warmup": 2, "limit": 3.0, "budget": 3.0, "twice": False}
FULL: dict[str, Any] = {"repeats": 11, "warmup": 6, "limit": 600.0, "budget": 120.0, "twice": True}
QUICK_MODELS = ("abc", "abplusc", "mlp", "alexnet", "resnet18")
QUICK_PEERS = ("torch", "jax")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of the command."""
    add = parser.add_argument
    add("--quick", action="store_true", help="small images, few turns: about two minutes")
    add("--device", choices=("cpu", "cuda"), help="default: $MINIGRAPH_DEVICE, else cpu")
    models, peers = _names(NAMES), _names(PEERS)
    add("--models", type=models, metavar="A,B", help=f"of {', '.join(NAMES)}")
    add("--levels", type=_levels, default=LEVELS, metavar="0,3", help="default: 0,1,2,3")
    add("--precision", choices=tuple(PRECISIONS), default=USUAL, help=f"default: {USUAL}")
    add("--budget", type=_count, metavar="S", help="seconds of tuning a compile, at most")
    add("--once", action="store_true", help="one process a side: no warm first calls")
    add("--untuned", action="store_true", help="networks without measured algorithms, too")
    add("--batch-size", type=_count, metavar="N", help="images a step of every network")
    about = f"of {', '.join(PEERS)}, or none (default: all; --quick: {', '.join(QUICK_PEERS)})"
    add("--peers", type=peers, metavar="A,B", help=about)
    add("--threads", type=_count, metavar="N", help="default: one a core")
    add("--repeats", type=_count, metavar="N", help="turns of each side")
    add("--out", type=Path, metavar="DIR", help="write results, a page and plots there")
    add("--render", type=Path, metavar="DIR", help="measure nothing; make its page and plots again")


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no integer >= 1")
    return int(text)


def _names(known: Sequence[str] | dict[str, Any]) -> Callable[[str], tuple[str, ...]]:
    def names(text: str) -> tuple[str, ...]:
        if text == "none":
            return ()
        found = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return found

    return names


def _levels(text: str) -> tuple[int, ...]:
    return tuple(map(int, _names(tuple(map(str, LEVELS)))(text)))


def run(asked: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    """Do what was asked for: the results as data, as lines, and the exit status."""
    if asked.render:
        found = results.read(asked.render)
        files = render(found, asked.render)
        return found.data(), [f"{asked.render / name} is written" for name in files], 0
    plan = planned(asked)
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)  # before minutes are spent
    found = measured(plan, asked.quick, asked.out)
    if asked.out:
        found.write(asked.out)
    lines = terminal(found)
    if asked.out:
        lines += ["", f"{', '.join([results.FILE, *render(found, asked.out)])} in {asked.out}"]
    return found.data(), lines, INTERRUPTED if found.interrupted else 0


def planned(asked: argparse.Namespace) -> Plan:
    """Return what is to be measured; OptionError if the device cannot do it."""
    device = mg.comp_graph(asked.device).device
    if device == "cpu" and asked.precision != USUAL:
        raise OptionError(
            f"--precision {asked.precision} takes --device cuda; a CPU computes in {USUAL}"
        )
    defaults = {**(QUICK if asked.quick else FULL)}
    if asked.repeats:
        defaults["repeats"] = asked.repeats
    if asked.budget:
        defaults["budget"] = float(asked.budget)
    if asked.once:
        defaults["twice"] = False
    models = QUICK_MODELS if asked.quick else NAMES
    peers = QUICK_PEERS if asked.quick else tuple(PEERS)
    return Plan(
        models=models if asked.models is None else asked.models,
        levels=asked.levels,
        peers=peers if asked.peers is None else asked.peers,
        device=device,
        threads=num_threads(asked.threads),
        batch_size=asked.batch_size,
        quick=asked.quick,
        precision=asked.precision,
        untuned=asked.untuned,
        **defaults,
    )


def measured(plan: Plan, quick: bool, folder: Path | None) -> Results:
    """Measure, with a bar that says how much time is left.

    folder  where results are written after each case
    """
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
        "quick": quick,
    }
    form = "{l_bar}{bar}| {elapsed}, about {remaining} left"
    with tqdm(total=cost(plan), bar_format=form, leave=False) as bar:
        expected = [0.0]

        def progress(what: str, seconds: float) -> None:
            bar.set_description_str(what, refresh=False)
            bar.update(expected[0])  # which is done when the next begins
            bar.refresh()
            expected[0] = seconds

        def keep(found: Results) -> None:
            if folder:
                found.write(folder)

        return measure.run(plan, options, progress, keep)


def render(found: Results, folder: Path) -> list[str]:
    """Write the page and, where matplotlib is installed, the plots; return their names."""
    plots: list[str] = []
    if find_spec("matplotlib"):
        for name in PLOTS:
            (folder / name).unlink(missing_ok=True)
        subprocess.run([sys.executable, "-m", "minigraph.bench.plot", str(folder)], check=True)
        plots = [name for name in PLOTS if (folder / name).exists()]
    (folder / PAGE).write_text(page(found, plots))
    return [PAGE, *plots]

"""The command `minigraph bench`: its arguments, its files, what it prints."""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tqdm import tqdm

import minigraph as mg
from minigraph.bench.cases import EXPRESSIONS, GROUPS, NAMES, NETWORKS, PRECISIONS, USUAL
from minigraph.bench.measure import measure_cases
from minigraph.bench.own_network import is_file, name_of
from minigraph.bench.page import markdown_page, terminal_lines
from minigraph.bench.plan import PEERS, Plan
from minigraph.bench.results import FILE, LEVELS, Results
from minigraph.bench.schedule import Clock
from minigraph.errors import GraphError, OptionError, reason
from minigraph.options import num_threads
from minigraph.platform.text_file import write_text

PAGE = "README.md"  # web sites of repositories show it with its folder
PLOTS = ("levels.svg", "roofline.svg", "kernels.svg")
INTERRUPTED = 130  # the exit status of a program that Ctrl-C ended
QUICK_PEERS = ("torch", "jax")
# What says most comes first: on a slow machine two minutes end before the last cases.
QUICK: dict[str, Any] = {
    "repeats": 5,
    "minutes": 2,
    "budget": 3.0,
    "twice": False,
    "models": ("resnet18", "alexnet", "mlp", "abc", "abplusc"),
    "peers": QUICK_PEERS,
}
FULL: dict[str, Any] = {
    "repeats": 11,
    "minutes": None,
    "budget": 120.0,
    "twice": True,
    "models": (*EXPRESSIONS, *NETWORKS),
    "peers": tuple(PEERS),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of the command; where they stand for a Plan's fields, its names."""
    add = parser.add_argument
    add("--quick", action="store_true", help="small images, few turns: two minutes")
    add("--device", choices=("cpu", "cuda"), help="default: $MINIGRAPH_DEVICE, else cpu")
    add(
        "--models",
        type=_models,
        metavar="A,B",
        help=f"of {', '.join([*GROUPS, *NAMES])}, or files of networks of your own; "
        "default: all but inference",
    )
    add("--levels", type=_levels, default=LEVELS, metavar="0,3", help="default: 0,1,2,3")
    add("--precision", choices=tuple(PRECISIONS), default=USUAL, help=f"default: {USUAL}")
    add("--budget", type=_seconds, metavar="S", help="seconds of tuning per compile, at most")
    once = "start each side in one process only, so that there are no warm starts"
    add("--once", dest="twice", action="store_const", const=False, help=once)
    add("--untuned", action="store_true", help="also run networks with heuristics only")
    add("--batch-size", type=_count, metavar="N", help="images per training step")
    peers = (
        f"of {', '.join(PEERS)}, or none (default: all; with --quick {', '.join(QUICK_PEERS)}); "
    )
    peers += "jax has expressions and the mlp, onnxruntime predictions"
    add("--peers", type=_names(PEERS), metavar="A,B", help=peers)
    add("--threads", type=_count, metavar="N", help="default: one per core")
    processes = "also train in so many processes, which share the threads, one each by default; "
    processes += "on CUDA each has a device"
    add("--processes", type=_count, default=1, metavar="N", help=processes)
    add("--repeats", type=_count, metavar="N", help="turns of each side, at most")
    minutes = "end after so many minutes, with less measured on a slow machine (with --quick: 2)"
    add("--minutes", type=_count, metavar="N", help=minutes)
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


def _models(text: str) -> tuple[str, ...]:
    """Return names of cases, those of a group for the group's name, and files."""
    files = [name for name in map(str.strip, text.split(",")) if is_file(name)]
    for name in files:
        if not Path(name).is_file():
            raise argparse.ArgumentTypeError(f"{name!r} is no file")
    named = _names((*GROUPS, *NAMES, *files))(text)
    models = dict.fromkeys(case for name in named for case in GROUPS.get(name, [name]))
    for called, count in Counter(map(name_of, models)).items():
        if count > 1:
            raise argparse.ArgumentTypeError(f"{count} models are called {called!r}")
    return tuple(models)


def _levels(text: str) -> tuple[int, ...]:
    return tuple(map(int, _names(tuple(map(str, LEVELS)))(text)))


def bench(asked: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    """Do what was asked for: return the results as data, as lines, and the exit status."""
    plan = None if asked.render else planned(asked)
    if (asked.render or asked.out) and not find_spec("matplotlib"):
        _say("matplotlib is not installed, so there will be no plots; minigraph[bench] has it")
    if plan is None:
        results = Results.read(asked.render)
        names = render(results, asked.render)
        return results.data(), [f"{asked.render / name} is written" for name in names], 0
    if asked.out:
        _make(asked.out)  # a failure here costs no minutes
    results = _measured(plan, asked.out)
    lines, status = terminal_lines(results), INTERRUPTED if results.interrupted else 0
    if asked.out:
        try:
            results.write(asked.out)
            lines += ["", f"{', '.join([FILE, *render(results, asked.out)])} in {asked.out}"]
        except (GraphError, OSError) as error:  # what was measured is printed nevertheless
            _say(str(error))
            status = status or 1
    return results.data(), lines, status


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GraphError(f"--out: {folder} cannot be made: {reason(error)}") from None


def planned(asked: argparse.Namespace) -> Plan:
    """Return what is to be measured; OptionError if the device cannot do it."""
    device = mg.comp_graph(asked.device).device
    if device == "cpu" and asked.precision not in (USUAL, "bfloat16"):
        raise OptionError(
            f"--precision {asked.precision} takes --device cuda; a CPU has {USUAL} and bfloat16"
        )
    if asked.precision == "bfloat16" and device == "cpu":
        # An error, before anything is measured, if the processor does not compute in it.
        mg.comp_graph(device, PRECISIONS[asked.precision].options).compile([], [])
    plan = {**(QUICK if asked.quick else FULL), "batch_size": None}
    names = {field.name for field in fields(Plan)}
    plan |= {k: v for k, v in vars(asked).items() if k in names and v is not None}
    threads = asked.threads or (asked.processes if asked.processes > 1 else None)
    plan["named"] = asked.peers is not None
    return Plan(**{**plan, "device": device, "threads": num_threads(threads)})


def _measured(plan: Plan, folder: Path | None) -> Results:
    """Measure, with a bar that says how much time is left; write to a folder after each case."""
    options = {
        "device": plan.device,
        "threads": plan.threads,
        "processes": plan.processes,
        "precision": plan.precision,
        "levels": list(plan.levels),
        "untuned": plan.untuned,
        "peers": list(plan.peers),
        "repeats": plan.repeats,
        "batch size": plan.batch_size or "by model",
        "tuning, s": plan.budget,
        "quick": plan.quick,
    }

    def keep(results: Results) -> None:
        if folder:
            with suppress(GraphError, OSError):  # the last write says why
                results.write(folder)

    with Bar(plan.promised) as bar:
        return measure_cases(plan, options, bar.begin, keep)


class Bar:
    """A bar in a terminal, which shows each second what is done now and how much time is left."""

    def __init__(self, promised: float, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._end = self._start + promised
        # `None` disables it where there is no terminal.
        self._bar = tqdm(total=promised, bar_format="{desc}", leave=False, disable=None)
        self._stopped = threading.Event()
        self._ticking = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Bar:
        self._ticking.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._ticking.join()
        self._bar.close()

    def begin(self, what: str, left: float) -> None:
        """Show what is done from now on, and the seconds until the run ends."""
        self._end = self._clock() + left
        self._bar.set_description_str(what, refresh=False)
        self.show()

    def show(self) -> None:
        """Draw the bar anew; a longer part would leave it as it is for a minute."""
        now = self._clock()
        elapsed, left = now - self._start, max(0.0, self._end - now)
        words = f"{tqdm.format_interval(elapsed)}, about {tqdm.format_interval(left)} left"
        self._bar.n, self._bar.total = elapsed, max(elapsed + left, 1.0)
        self._bar.bar_format = f"{{desc}} {{percentage:3.0f}}%|{{bar}}| {words}"
        self._bar.refresh()

    def _tick(self) -> None:
        while not self._stopped.wait(1.0):
            self.show()


def _say(what: str) -> None:
    """Print a line at once: the warnings of a command are printed when it has ended."""
    print(f"minigraph: {what}", file=sys.stderr, flush=True)


def render(results: Results, folder: Path) -> list[str]:
    """Write the page and, where matplotlib is installed, the plots; return their names."""
    plots: list[str] = []
    if find_spec("matplotlib"):
        for name in PLOTS:
            (folder / name).unlink(missing_ok=True)
        program = [sys.executable, "-m", "minigraph.bench.plot", str(folder)]
        drawn = subprocess.run(program, capture_output=True, text=True)
        if drawn.returncode:
            why = drawn.stderr.strip().rpartition("\n")[2]
            _say(f"the plots cannot be drawn: {why}")
        plots = [name for name in PLOTS if (folder / name).exists()]
    write_text(folder / PAGE, markdown_page(results, plots))
    return [PAGE, *plots]

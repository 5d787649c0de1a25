"""The command `minigraph bench`: its arguments, files and output."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import minigraph as mg
from minigraph.bench.cases import (
    DEFAULT_PRECISION,
    EXPRESSIONS,
    GROUPS,
    NAMES,
    NETWORKS,
    PRECISIONS,
)
from minigraph.bench.measure import measure_cases
from minigraph.bench.networks import is_file, name_of
from minigraph.bench.plan import OTHER_LIBRARIES, PEERS, Plan
from minigraph.bench.results import FILE, FRONTEND_PREFIX, LEVELS, Results
from minigraph.bench.tables import markdown_page, terminal_lines
from minigraph.errors import GraphError, OptionError, reason
from minigraph.options import num_threads
from minigraph.platform.messages import progress
from minigraph.platform.regular_file import write_text

PAGE = "README.md"  # web sites of repositories show it with its folder
CPU_PRECISIONS = (DEFAULT_PRECISION, "bfloat16", "bf16x3")
OMITTED_FIELDS = ("models", "named")  # fields of the plan that results do not repeat
INTERRUPTED_STATUS = 130  # the exit status of a program that Ctrl-C ended
# By option: its default, and that of a quick run.
DEFAULTS: dict[str, tuple[Any, Any]] = {
    "repeats": (11, 5),
    "minutes": (60, 2),
    "budget": (120.0, 3.0),
    "twice": (True, False),
    "levels": (LEVELS, (LEVELS[0], LEVELS[-1])),
    # The most important cases first: on a slow machine two minutes do not suffice for all.
    "models": ((*EXPRESSIONS, *NETWORKS), ("resnet18", "alexnet", "mlp", "abc", "abplusc")),
    "peers": (OTHER_LIBRARIES, ("torch", "jax", "onnxruntime")),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser; those for a Plan's fields have its names."""
    add = parser.add_argument
    add("--quick", action="store_true", help="small images, few turns: two minutes")
    add("--device", choices=("cpu", "cuda"), help="default: $MINIGRAPH_DEVICE, else cpu")
    models = f"of {', '.join([*GROUPS, *NAMES])}, or files: your own networks, such as net.py, "
    models += "and model.onnx; default: all but inference; with --quick: "
    add("--models", type=_models, metavar="A,B", help=models + ",".join(DEFAULTS["models"][1]))
    add(
        "--levels",
        type=_levels,
        metavar="0,3",
        help=f"levels of optimisation {_default_text('levels')}",
    )
    add(
        "--precision",
        choices=tuple(PRECISIONS),
        default=DEFAULT_PRECISION,
        help=f"default: {DEFAULT_PRECISION}",
    )
    budget = f"maximum seconds of tuning per compile {_default_text('budget')}"
    add("--budget", type=_count, metavar="S", help=budget)
    once = "start each side in one process only, without a warm start"
    add("--once", dest="twice", action="store_const", const=False, help=once)
    add("--untuned", action="store_true", help="also run networks with heuristics only")
    images = "images per training step, or per call of an ONNX model with a symbolic batch size"
    add("--batch-size", type=_count, metavar="N", help=images)
    peers = f"of {', '.join(PEERS)}, or none {_default_text('peers')}; jax has expressions and "
    peers += f"the mlp, onnxruntime ONNX models; {FRONTEND_PREFIX}torch is "
    peers += f"minigraph.torch.training_step, {FRONTEND_PREFIX}compile "
    peers += "torch.compile(backend='minigraph')"
    add("--peers", type=_names(PEERS), metavar="A,B", help=peers)
    add("--threads", type=_count, metavar="N", help="default: one per core")
    repeats = f"maximum turns of each side {_default_text('repeats')}"
    add("--repeats", type=_count, metavar="N", help=repeats)
    minutes = "time limit in minutes; a slow machine measures less "
    minutes += _default_text("minutes")
    add("--minutes", type=_count, metavar="N", help=minutes)
    add("--out", type=Path, metavar="DIR", help="write the results and a page to DIR")
    render = "measure nothing; write the page of the results in DIR again"
    add("--render", type=Path, metavar="DIR", help=render)


def _default_text(name: str) -> str:
    """Return the defaults of an option in words."""
    full, quick = (
        ",".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"
        for value in DEFAULTS[name]
    )
    return f"(default: {full}; with --quick: {quick})"


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer >= 1")
    return int(text)


def _names(choices: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    def names(text: str) -> tuple[str, ...]:
        if text == "none":
            return ()
        parsed = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        for name in parsed:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(choices)}")
        return parsed

    return names


def _models(text: str) -> tuple[str, ...]:
    """Return names of cases and files; the name of a group means all its cases."""
    files = [name for name in map(str.strip, text.split(",")) if is_file(name)]
    for name in files:
        if not Path(name).is_file():
            raise argparse.ArgumentTypeError(f"{name!r} is not a file")
    names = _names((*GROUPS, *NAMES, *files))(text)
    models = dict.fromkeys(case for name in names for case in GROUPS.get(name, [name]))
    for title, count in Counter(map(name_of, models)).items():
        if count > 1:
            raise argparse.ArgumentTypeError(f"{count} models are called {title!r}")
    return tuple(models)


def _levels(text: str) -> tuple[int, ...]:
    return tuple(map(int, _names([*map(str, LEVELS)])(text)))


def bench(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    """Run the command: return the results as data, as lines, and the exit status."""
    plan = None if arguments.render else plan_of(arguments)
    if plan is None:
        results = Results.read(arguments.render)
        write_text(arguments.render / PAGE, markdown_page(results))
        return results.data(), [f"{arguments.render / PAGE} is written"], 0
    if arguments.out:  # fails before the measurement rather than after it
        try:
            arguments.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GraphError(f"--out: {arguments.out} cannot be made: {reason(error)}") from None
    results = _measure(plan, arguments.out)
    lines, status = terminal_lines(results), INTERRUPTED_STATUS if results.interrupted else 0
    if arguments.out:
        try:
            results.write(arguments.out)
            write_text(arguments.out / PAGE, markdown_page(results))
            lines += ["", f"{FILE}, {PAGE} in {arguments.out}"]
        except (GraphError, OSError) as error:  # the results are printed nevertheless
            # Printed immediately, as the warnings of a command come after its output.
            print(f"minigraph: {error}", file=sys.stderr, flush=True)
            status = status or 1
    return results.data(), lines, status


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Return the plan of the arguments; raise OptionError if the device does not support it."""
    device = mg.comp_graph(arguments.device).device
    if device == "cpu" and arguments.precision not in CPU_PRECISIONS:
        raise OptionError(
            f"--precision {arguments.precision} takes --device cuda; "
            f"a CPU has {', '.join(CPU_PRECISIONS)}"
        )
    if device == "cpu":
        # Raises an error before the measurement if the processor lacks the precision.
        mg.comp_graph(device, PRECISIONS[arguments.precision].options).compile([], [])
    plan: dict[str, Any] = {name: each[arguments.quick] for name, each in DEFAULTS.items()}
    plan["batch_size"] = None
    names = {field.name for field in fields(Plan)}
    plan |= {k: v for k, v in vars(arguments).items() if k in names and v is not None}
    plan |= {"device": device, "threads": num_threads(arguments.threads)}
    return Plan(**plan, named=arguments.peers is not None)


def _measure(plan: Plan, folder: Path | None) -> Results:
    options = {name: value for name, value in asdict(plan).items() if name not in OMITTED_FIELDS}

    def save(results: Results) -> None:
        if folder:
            with suppress(GraphError, OSError):  # the last write says why
                results.write(folder)

    start, bar_format = time.monotonic(), "{desc} |{bar}| {n:.1f} of at most {total} minutes"
    with progress(total=plan.minutes, bar_format=bar_format) as bar:

        def begin(what: str) -> None:
            bar.n = (time.monotonic() - start) / 60
            bar.set_description_str(what)

        return measure_cases(plan, options, begin, save)

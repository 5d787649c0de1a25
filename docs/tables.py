"""Fill in the tables of the documents: from the code, or from the results of benchmarks.

    python docs/tables.py [--check] [--results DIR] [FILE ...]

What lies between `<!-- table: NAME -->` and `<!-- end -->` becomes one of these tables:

parts    the parts of the package, in the order of tests/layers.py, with what they hold
options  the options, from minigraph/options.py
attacks  what `tools/attack.py --json docs/long-run.json` counted, with its machine, seed and commit
samples  what `tools/torch_samples.py --json docs/torch-samples.json` counted
operators
         the operators of ATen that had rows in that run
sweep    what `tools/level_sweep.py --json docs/level-sweep.json` counted
plans    what `tools/cudnn_plans.py --json docs/cudnn-plans.json` found
growth   what `benchmarks/compare.py growth --json docs/growth.json` measured
networks, expressions
         a step on each of MACHINES, beside the fastest other library
gpus     the same on each of GPUS
cells    how the cells of `benchmarks/compare.py sweep` compare with PyTorch's, on each machine

What lies between `<!-- bench: RUN TABLE -->` and `<!-- end -->` becomes that table of the results
in DIR/RUN.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from minigraph.bench.results import CaseResult, Results
from minigraph.bench.tables import NOTHING, UNCLEAR, about, escaped, milliseconds, remarks, tables
from minigraph.errors import GraphError
from minigraph.options import OPTIONS

ROOT = Path(__file__).parent.parent
FILES = (
    "README.md",
    "docs/architecture.md",
    "docs/how.md",
    "docs/performance/gpu.md",
    "docs/performance/index.md",
    "docs/performance/history.md",
    "docs/pytorch.md",
    "docs/reference/options.md",
    "docs/reference/torch.md",
    "docs/reliability.md",
)
# The runs of each machine, as folders of results; the last run of a case counts.  Those of
# processors lie below cpu/networks and cpu/expressions, and not every machine has both.
MACHINES = {
    "Zen 5": ["zen5"],
    "Zen 4": ["zen4", "zen4_unet_lstm"],
    "Xeon": ["xeon", "xeon_unet_lstm"],
    "Zen 2": ["zen2"],
}
GPUS = {
    "H200": ["resnet50_bfloat16", "alexnet_bfloat16", "gpt_bfloat16", "unet_bfloat16"],
    "H100": ["networks_bfloat16", "resnet50_bfloat16", "gpt_bfloat16", "unet_bfloat16"],
}
MARKED = re.compile(
    r"(<!-- (table|bench): ([^\n]*?) -->\n)(?:(?!<!-- (?:table|bench): ).)*?(<!-- end -->)", re.S
)
BEGIN = re.compile("<!-- (?:table|bench): ")


def filled(text: str, results: Path) -> str:
    """Return a document with new tables; results of benchmarks are in the folder `results`."""

    def table(match: re.Match[str]) -> str:
        begin, kind, name, end = match.groups()
        lines = _of_results(name, results) if kind == "bench" else _of_code(name)
        return "\n".join([begin.rstrip("\n"), *lines, end])

    document, count = MARKED.subn(table, text)
    if count < len(BEGIN.findall(text)):
        raise GraphError("a table has no <!-- end -->")
    return document


def _of_results(name: str, folder: Path) -> list[str]:
    """Return a table of results as Markdown; "about" is the machine and the versions instead."""
    run, _, table = name.partition(" ")
    if not table:
        raise GraphError(f"<!-- bench: {name} --> names no RUN TABLE")
    results = Results.read(folder / run)
    if table == "about":
        return [f"* {line}" for line in [*about(results), *remarks(results)]]
    choices = tables(results)
    if table not in choices:
        raise GraphError(f"there is no table {table!r}; use about, {', '.join(choices)}")
    return choices[table].markdown()


def _of_code(name: str) -> list[str]:
    """Return a table that is made from the code, as Markdown."""
    if name not in TABLES:
        raise GraphError(f"there is no table {name!r}; use {', '.join(TABLES)}")
    return TABLES[name]()


def _markdown(header: Sequence[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]


def _options() -> list[str]:
    rows = [[f"`{o.name}`", o.default_words, o.sentence] for o in OPTIONS.values()]
    return _markdown(["option", "default", "meaning"], rows)


def _parts() -> list[str]:
    """Return a row for each part: its rank, its name, and its docstring's first line."""
    rows = []
    layers = runpy.run_path(str(ROOT / "tests" / "layers.py"))["LAYERS"]
    for rank, parts in enumerate(layers["minigraph"], 1):
        for part in parts:
            path = ROOT / "minigraph" / part  # a folder, or a file without its suffix
            source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            docstring = ast.get_docstring(ast.parse(source.read_text())) or ""
            sentence = docstring.partition("\n")[0].replace("  ", " ")
            rows.append([str(rank), f"`{part}/`" if path.is_dir() else f"`{part}.py`", sentence])
    return _markdown(["rank", "part", "what it holds"], rows)


def _attacks() -> list[str]:
    run = json.loads((ROOT / "docs" / "long-run.json").read_text())
    about = f"{run['date']}, commit {run['commit']}, {run['minutes']:.0f} minutes from seed "
    rows = []
    for name, part in run["parts"].items():
        counts = (f"{count:,} {what}" for what, count in sorted(part["counts"].items()) if count)
        failed = str(len(part["failures"]))
        rows.append([f"`{name}`", f"{part['attempts']:,}", failed, ", ".join(counts)])
    table = _markdown(["part", "attempts", "failed", "what they did"], rows)
    return [f"{about}{run['seed']}, on {run['machine']}:", "", *table]


def _torch_samples() -> Any:
    return json.loads((ROOT / "docs" / "torch-samples.json").read_text())


def _samples() -> list[str]:
    """Return how much was compared with PyTorch, and how much of that was wrong."""
    run = _torch_samples()
    limit = f" on at most {run['samples']} samples of a dtype" if run["samples"] else ""
    about = (
        f"{run['date']}, torch {run['torch']}: {len(run['compared'])} operators and modules "
        f"compared{limit}, {len(run['absent'])} more of which all samples were refused; "
        f"{sum(count for *_, count in run['refused']):,} samples refused, {len(run['wrong'])} "
        "wrong."
    )
    return [about]


def _operators() -> list[str]:
    """Return the operators of ATen that have rows, by subject."""
    run = _torch_samples()
    rows = [[subject, ", ".join(names)] for subject, names in run["operators"].items()]
    core, missing = run["core"]
    about = f"{sum(len(names) for names in run['operators'].values())} operators have rows; of the "
    about += f"{core} of core ATen these have none: {', '.join(missing)}."
    return [about, "", *_markdown(["subject", "operators"], rows)]


def _sweep() -> list[str]:
    """Return how many programs were timed at all levels, and those of which one is slower."""
    runs = json.loads((ROOT / "docs" / "level-sweep.json").read_text())
    header = ["run", "programs", "a level slower than the one below", "steps by NumPy"]
    rows = [
        [run["about"], f"{run['programs']:,}", str(len(run["slower"])), str(len(run["numpy"]))]
        for run in runs
    ]
    return [*_markdown(header, rows), "", *(f"* {case}" for run in runs for case in run["slower"])]


def _plans() -> list[str]:
    """Return what cuDNN offers for each network in each precision, all layouts together."""
    run = json.loads((ROOT / "docs" / "cudnn-plans.json").read_text())
    about = (
        f"{run['date']}, {run['device']}, cuDNN {run['cudnn']}, its frontend {run['frontend']}, "
        f"NVRTC {run['nvrtc']}:"
    )
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for row in run["rows"]:
        groups.setdefault((row["network"], row["precision"]), {})[row["layout"]] = row
    header = ["network", "precision", "problems in a layout", "without a plan", "plans"]
    header += ["that cannot be built", "that cuDNN compiles", "s to list", "s to build"]
    header += ["workspaces in nchw, MB", "in nhwc"]
    lines = []
    for names, layouts in groups.items():
        counts = [
            sum(row[key] for row in layouts.values())
            for key in ("problems", "plans", "generated", "seconds to list", "seconds to build")
        ]
        missing, failed = (
            sum(len(row[key]) for row in layouts.values())
            for key in ("without a plan", "not built")
        )
        problems, plans, generated, listing, building = counts
        workspaces = (layouts[layout]["first workspace"] / 1e6 for layout in ("nchw", "nhwc"))
        cells = [f"{problems}", f"{missing}", f"{plans:,}", f"{failed}", f"{generated}"]
        cells += [f"{listing:.1f}", f"{building:.1f}", *(f"{size:,.0f}" for size in workspaces)]
        lines.append([*names, *cells])
    return [about, "", *_markdown(header, lines)]


def _growth() -> list[str]:
    """Return how compiling and calling grow with a graph."""
    run = json.loads((ROOT / "docs" / "growth.json").read_text())
    threads = list(dict.fromkeys(n for row in run["graphs"] for n in row["calls"]))
    header = ["graph", "nodes", "kernels", "compiling, s", "µs a node", "the slowest pass"]
    header += [f"a call, {n} thread{'s' * (n != '1')}" for n in threads]
    header.append("µs a kernel")
    rows = []
    for row in run["graphs"]:
        each, took = 1e6 * row["compiling"] / row["nodes"], row["calls"]
        cells = [row["graph"], f"{row['nodes']:,}", f"{row['kernels']:,}"]
        cells += [f"{row['compiling']:.2f}", f"{each:.0f}"]
        cells.append(f"{row['slowest pass']}, {row['its share']:.0%}")
        cells += [milliseconds(took[n]) if n in took else "" for n in threads]
        rows.append([*cells, f"{1e6 * took['1'] / row['kernels']:.2f}"])
    about = f"{run['date']}, {run['processor']}, {run['cpus']} processors:"
    return [about, "", *_markdown(header, rows)]


def _machines(subject: str) -> list[str]:
    """Return each network or expression beside the fastest other library, on each machine."""
    runs = {machine: [f"cpu/{subject}/{run}" for run in runs] for machine, runs in MACHINES.items()}
    return _beside_peers(runs, subject)


def _gpus() -> list[str]:
    """Return each network beside the fastest other library, on each GPU."""
    runs = {gpu: [f"cuda/{gpu.lower()}/{run}" for run in runs] for gpu, runs in GPUS.items()}
    return _beside_peers(runs, "networks")


def _beside_peers(machines: Mapping[str, Sequence[str]], subject: str) -> list[str]:
    by_machine: dict[str, dict[str, CaseResult]] = {}
    for machine, runs in machines.items():
        for folder in (ROOT / "benchmarks" / "results" / run for run in runs):
            if folder.is_dir():
                by_machine.setdefault(machine, {}).update(Results.read(folder).cases)
    titles = {name: case.title for cases in by_machine.values() for name, case in cases.items()}
    rows = [
        [escaped(title), *(_beside_peer(cases.get(name), subject) for cases in by_machine.values())]
        for name, title in titles.items()
    ]
    return _markdown(["", *by_machine], rows)


def _beside_peer(case: CaseResult | None, subject: str) -> str:
    """Return how many times as fast the highest level is as the fastest other library.

    Nearly all memory of expressions is their operands; that of networks tells the libraries apart.
    """
    if case is None or not case.highest or not case.best_peer:
        return NOTHING
    (_, ours), (name, peer) = case.highest, case.best_peer
    times = f"{peer.median / ours.median:.2f} x" if ours.differs(peer) else UNCLEAR
    took, theirs = map(milliseconds, (ours.median, peer.median))
    share = ""
    if subject == "networks":
        took, theirs = (
            f"{each} and {x.peak / 2**20:,.0f} MiB" if x.peak else each
            for each, x in ((took, ours), (theirs, peer))
        )
    elif ours.roofline:
        share = f", {ours.roofline / ours.median:.0%} of the roofline"
    return f"**{times}**, {took} instead of {theirs} ({name}){share}"


def _cells() -> list[str]:
    """Return how many times as fast cells are, by machine, dtype, size and kind."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for path in sorted((ROOT / "benchmarks" / "results" / "cpu" / "sweep").glob("*/results.json")):
        run = json.loads(path.read_text())
        for values in run["cells"]:
            cell = dict(zip(run["columns"], values, strict=True))
            group = path.parent.name, cell["dtype"], cell["size"], cell["kind"]
            groups.setdefault(group, []).append(cell["eager"] / cell["minigraph"])
    header = ["run", "dtype", "size", "kind", "cells", "below 0.9", "geometric mean"]
    rows = [
        [
            *group,
            str(len(ratios)),
            str(sum(x < 0.9 for x in ratios)),
            f"{geometric_mean(ratios):.2f}",
        ]
        for group, ratios in groups.items()
    ]
    return _markdown(header, rows)


def _compilers(model: str) -> list[str]:
    """Return how long a network takes with each compiler, with oneDNN and without, by machine."""
    tables: list[str] = []
    for path in sorted((ROOT / "benchmarks/results/cpu/compilers").glob("*/results.json")):
        run = json.loads(path.read_text())
        header = ["compiler", "oneDNN", "Python", "kernels by", "compiling and first call, s"]
        rows = [
            [
                cell["compiler"],
                "yes" if cell["onednn"] else "no",
                cell["python"],
                ", ".join(cell["makers"]),
                f"{cell['first']:.1f}",
                milliseconds(cell["step"]),
            ]
            for cell in run["cells"]
            if cell["model"] == model
        ]
        tables += [f"{path.parent.name}, {run['processor']}, {run['date']}:", ""]
        tables += [*_markdown([*header, "step"], rows), ""]
    return tables[:-1]


TABLES: dict[str, Callable[[], list[str]]] = {
    "parts": _parts,
    "options": _options,
    "attacks": _attacks,
    "samples": _samples,
    "operators": _operators,
    "sweep": _sweep,
    "plans": _plans,
    "growth": _growth,
    "networks": partial(_machines, "networks"),
    "expressions": partial(_machines, "expressions"),
    "gpus": _gpus,
    "cells": _cells,
    "compilers mlp": partial(_compilers, "mlp"),
    "compilers resnet18": partial(_compilers, "resnet18"),
}


def main(arguments: list[str] | None = None) -> int:
    """Fill documents in, or name those that are out of date; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if outdated")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR"
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=", ".join(FILES))
    args = parser.parse_args(arguments)
    outdated = False
    try:
        for path in args.files or [ROOT / name for name in FILES]:
            old = path.read_text()
            new = filled(old, args.results)
            if new == old:
                continue
            outdated = True
            if args.check:
                print(f"{path}: tables are out of date; run python docs/tables.py", file=sys.stderr)
            else:
                path.write_text(new)
    except (GraphError, OSError) as error:
        print(f"docs/tables.py: {error}", file=sys.stderr)
        return 1
    return int(args.check and outdated)


if __name__ == "__main__":
    sys.exit(main())

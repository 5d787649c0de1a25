"""The page of a run, for a terminal and as Markdown.  It is made from the results alone."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from importlib.util import find_spec

from minigraph.bench.plan import MACHINE
from minigraph.bench.results import NOISY, Results
from minigraph.bench.tables import WIDTH, conclusion, escaped, listed, tables


def remarks(results: Results) -> list[str]:
    """Return what a reader has to know before the tables, in sentences."""
    lines = []
    if results.options.get("quick"):
        lines.append(
            "A quick run: images of 64 x 64, small batches, few turns, little time to tune; "
            "leave out --quick for figures that count."
        )
    if results.noisy:
        lines.append(
            f"The machine was noisy: half of the sides have a spread above {results.spread:.0%} "
            f"(up to {NOISY:.0%} is usual); trust only large differences."
        )
    lines += out_of_time(results)
    lines += [f"{name} {why}, so it is not compared with." for name, why in results.missing.items()]
    if results.interrupted:
        lines.append("Interrupted: this is what was measured until then.")
    return lines


def out_of_time(results: Results) -> list[str]:
    """Return in a sentence what the run had no time for; no line if it had the time."""
    asked = results.options.get("repeats", 0)
    measured = [side for case in results.cases.values() for side in case.measured.values()]
    fewest = min((len(side.seconds) for side in measured if not side.error), default=asked)
    lost = [_lost(title, sides) for title, sides in results.left_out.items()]
    facts = [f"some sides have {fewest} of {asked} turns"] * (fewest < asked)
    facts += [f"not measured are {listed(lost)}"] * bool(lost)
    if results.interrupted or not facts:
        return []
    return [
        f"The time was up: {'; '.join(facts)}. Where other programs keep the machine busy, "
        "--minutes gives a run more time."
    ]


def _lost(title: str, sides: Sequence[str]) -> str:
    name, _, _ = title.partition(", ")
    count = len({*sides} - {MACHINE})
    parts = [f"{count} side{'s' * (count > 1)}"] * bool(count)
    parts += ["the bounds"] * (MACHINE in sides)
    return f"{listed(parts)} of {name}" if sides else f"all of {name}"


def about(results: Results) -> list[str]:
    """Return lines on the machine, the versions and the options."""
    machine = results.machine
    memory = f", {machine['memory'] / (1 << 30):.0f} GiB" if machine.get("memory") else ""
    options = [
        f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in results.options.items()
    ]
    return [
        f"{results.date}, {machine['processor']}, {machine['cpus']} processors{memory}",
        ", ".join(f"{name} {version}" for name, version in results.versions.items()),
        ", ".join(options),
    ]


def terminal_lines(results: Results) -> list[str]:
    """Return the lines that are printed after a run."""
    # A pipe has no columns, and takes lines of any length.
    columns = shutil.get_terminal_size((sys.maxsize, 0)).columns
    lines = []
    for line in (*about(results), *remarks(results)):
        lines += textwrap.wrap(line, min(columns, WIDTH))
    for table in tables(results).values():
        if table.rows:
            lines += ["", *table.text(columns)]
    if last := conclusion(results):
        lines += ["", *textwrap.wrap(last, min(columns, WIDTH))]
    return lines


def markdown_page(results: Results, plots: Sequence[str]) -> str:
    """Return the Markdown page, with these plots, which lie beside it."""
    parts = ["# minigraph bench", "\n".join(f"* {line}" for line in about(results))]
    parts += [f"**{remark}**" for remark in remarks(results)]
    parts += filter(None, [escaped(conclusion(results))])
    for table in tables(results).values():
        if table.rows:
            parts += [f"## {table.title}", table.about, "\n".join(table.markdown())]
    if plots:
        parts += ["## Plots", *(f"![{name.partition('.')[0]}]({name})" for name in plots)]
    elif not find_spec("matplotlib"):
        parts.append("There are no plots: matplotlib is not installed (`minigraph[bench]`).")
    return "\n\n".join(parts) + "\n"

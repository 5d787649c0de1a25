"""The page of a run, for a terminal and as Markdown.  It is made from the results alone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from minigraph.bench.results import NOISY, Results
from minigraph.bench.tables import tables


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
    lines += [f"{name} {why}, so it is not compared with." for name, why in results.missing.items()]
    if results.interrupted:
        lines.append("Interrupted: this is what was measured until then.")
    return lines


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
    lines = [*about(results), *remarks(results)]
    for table in tables(results).values():
        if table.rows:
            lines += ["", *table.text()]
    return lines


def markdown_page(results: Results, plots: Sequence[str]) -> str:
    """Return the Markdown page, with these plots, which lie beside it."""
    parts = ["# minigraph bench", "\n".join(f"* {line}" for line in about(results))]
    parts += [f"**{remark}**" for remark in remarks(results)]
    for table in tables(results).values():
        if table.rows:
            parts += [f"## {table.title}", table.about, "\n".join(table.markdown())]
    if plots:
        parts += ["## Plots", *(f"![{name.partition('.')[0]}]({name})" for name in plots)]
    elif not find_spec("matplotlib"):
        parts.append("There are no plots: matplotlib is not installed (`minigraph[bench]`).")
    return "\n\n".join(parts) + "\n"

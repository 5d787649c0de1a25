"""The page of a run: what was measured on what, the tables, the plots.  From the results alone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from minigraph.bench.results import NOISY, Results
from minigraph.bench.summary import tables


def remarks(results: Results) -> list[str]:
    """Return what a reader has to know before the tables, a sentence each."""
    found = []
    if results.options.get("quick"):
        found.append(
            "A quick run: images of 64 x 64, small batches, few turns, little time to tune; "
            "leave out --quick for figures that count."
        )
    if results.noisy:
        found.append(
            f"The machine was noisy: half of the sides have a spread above {results.spread:.0%} "
            f"(up to {NOISY:.0%} is usual); trust only large differences."
        )
    for name, why in results.missing.items():
        found.append(f"{name} {why}, so it is not compared with.")
    if results.interrupted:
        found.append("Interrupted: this is what was measured until then.")
    return found


def about(results: Results) -> list[str]:
    """Return lines on the machine, the versions and the options."""
    machine, options = results.machine, results.options
    memory = f", {machine['memory'] / (1 << 30):.0f} GiB" if machine.get("memory") else ""
    return [
        f"{results.date}, {machine['processor']}, {machine['cpus']} processors{memory}",
        ", ".join(f"{name} {version}" for name, version in results.versions.items()),
        ", ".join(f"{name} {_shown(value)}" for name, value in options.items()),
    ]


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def terminal(results: Results) -> list[str]:
    """Return the lines that are printed after a run."""
    lines = [*about(results), *remarks(results)]
    for table in tables(results).values():
        if table.rows:
            lines += ["", *table.text()]
    return lines


def page(results: Results, plots: Sequence[str]) -> str:
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

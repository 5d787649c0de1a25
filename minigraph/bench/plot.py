"""The plots of a run, as SVG: `python -m minigraph.bench.plot DIR` draws the results in DIR.

Colours are of middle brightness on a transparent background, for light pages and dark ones.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib import pyplot

from minigraph.bench.results import GIGA, Results

GREY = "#808080"
COLOURS = (
    *("#4c8fd0", "#e08a3c", "#4ba66a", "#c76b9b", "#9077c9", "#b5973a", "#4aa8a8", "#c9605c"),
    *("#7f9f3f", "#a0785a", "#8a8fa8", "#d070d0"),
)
KERNELS = 8  # the longest, shown by name; the others are added up
STYLE = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), GREY),
    **dict.fromkeys(("xtick.color", "ytick.color", "grid.color"), GREY),
    "svg.hashsalt": "minigraph",  # the same results give the same file
    "svg.fonttype": "none",
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def draw(results: Results, folder: Path) -> None:
    """Write the plots for which there are figures."""
    with matplotlib.rc_context(STYLE):
        for name, make in (("levels", _levels), ("roofline", _roofline), ("kernels", _kernels)):
            figure = make(results)
            if figure is not None:
                metadata = {"Date": None}
                figure.savefig(folder / f"{name}.svg", transparent=True, metadata=metadata)
                pyplot.close(figure)


def _levels(results: Results) -> Any:
    """Draw a bar for each level and peer: speed relative to level 0, or to the first side."""
    cases = [case for case in results.cases.values() if case.measured]
    if not cases:
        return None
    names = list(dict.fromkeys(name for case in cases for name in case.measured))
    figure, axes = pyplot.subplots(figsize=(8, 0.3 * len(cases) * (len(names) + 1) + 1.5))
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        rows = [j for j, case in enumerate(cases) if name in case.measured]
        firsts = [next(iter(cases[j].measured.values())) for j in rows]
        sides = [cases[j].measured[name] for j in rows]
        speeds = [first.median / side.median for first, side in zip(firsts, sides, strict=True)]
        scatters = [speed * side.spread / 2 for speed, side in zip(speeds, sides, strict=True)]
        places = [j + (i - (len(names) - 1) / 2) * height for j in rows]
        axes.barh(places, speeds, 0.9 * height, xerr=scatters, ecolor=GREY, label=name)
    axes.set_yticks(range(len(cases)), [case.title for case in cases])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.axvline(1, color=GREY, linewidth=0.8)
    axes.set_xlabel(f"speed relative to {next(iter(cases[0].measured))}")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _roofline(results: Results) -> Any:
    """Draw the speed of each case at its highest level, below the machine's limits."""
    points = []
    for case in results.cases.values():
        if case.bound and case.highest:
            # An expression has no convolution or product: each element counts as one operation.
            flops = case.bound.flops or case.bound.bytes // 4
            points.append((case.title, flops, case.bound, case.highest[1].median))
    if not points:
        return None
    figure, axes = pyplot.subplots(figsize=(8, 5))
    peak = max(limit.peak for _, _, limit, _ in points)
    bandwidth = max(limit.bandwidth for _, _, limit, _ in points)
    intensities = [flops / limit.bytes for _, flops, limit, _ in points]
    low, high = min(intensities) / 2, max(*intensities, peak / bandwidth) * 4
    steps = [low * (high / low) ** (i / 100) for i in range(101)]
    roof = [min(peak, bandwidth * step) / GIGA for step in steps]
    axes.loglog(steps, roof, color=GREY, linewidth=1)
    for title, flops, limit, seconds in points:
        axes.loglog([flops / limit.bytes], [flops / seconds / GIGA], "o", label=title)
    axes.set_xlabel("operations per byte")
    axes.set_ylabel("GFLOP/s (of expressions: elements moved)")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _kernels(results: Results) -> Any:
    """Draw the time by kernel of each network at its highest level."""
    cases = [case for case in results.cases.values() if case.images]
    shown = [(case.title, case.highest[1].kernels) for case in cases if case.highest]
    shown = [(title, kernels) for title, kernels in shown if kernels]
    if not shown:
        return None
    rows = math.ceil(len(shown) / 2)
    figure, grid = pyplot.subplots(rows, 2, figsize=(11, 2.6 * rows), squeeze=False)
    for axes, (title, kernels) in zip(grid.flat, shown, strict=False):
        longest = sorted(kernels.items(), key=lambda item: -item[1])
        names = [name if len(name) < 44 else f"{name[:41]}..." for name, _ in longest[:KERNELS]]
        values = [1e3 * seconds for _, seconds in longest]
        names += ["others"] * (len(values) > KERNELS)
        values = values[:KERNELS] + [sum(values[KERNELS:])] * (len(values) > KERNELS)
        axes.barh(range(len(names)), values)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("ms")
    for axes in grid.flat[len(shown) :]:
        axes.remove()
    return figure


if __name__ == "__main__":
    matplotlib.use("svg")
    draw(Results.read(Path(sys.argv[1])), Path(sys.argv[1]))

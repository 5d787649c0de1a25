"""The plots of a run, as SVG: `python -m minigraph.bench.plot DIR` draws the results in DIR.

Colours are of middle brightness on a transparent background, for light pages and dark ones.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib import pyplot
from matplotlib.patches import Patch

from minigraph.bench.results import Results
from minigraph.inspect.roofline import GIGA

GREY = "#808080"
COLOURS = (
    *("#4c8fd0", "#e08a3c", "#4ba66a", "#c76b9b", "#9077c9", "#b5973a", "#4aa8a8", "#c9605c"),
    *("#7f9f3f", "#a0785a", "#8a8fa8", "#d070d0"),
)
OURS, THEIRS = "#4c8fd0", "#e08a3c"
LETTERS = 44  # of a line of a kernel's name
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
    "figure.constrained_layout.w_pad": 0.15,  # a browser's letters may be wider
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
    first = next(iter(cases[0].measured))
    figure, panels = _panels(
        f"Speed of a step relative to {first}: a longer bar is faster",
        results,
        [(case.title, len(case.measured)) for case in cases],
    )
    for axes, case in zip(panels, cases, strict=True):
        names, sides = list(case.measured), list(case.measured.values())
        speeds = [sides[0].median / side.median for side in sides]
        scatters = [speed * side.spread / 2 for speed, side in zip(speeds, sides, strict=True)]
        colours = [OURS if name.startswith("level ") else THEIRS for name in names]
        _bars(axes, names, speeds, [f"{speed:.2f}" for speed in speeds], colours, scatters)
        axes.axvline(1, color=GREY, linewidth=0.8)
    shown = {OURS: "minigraph", THEIRS: "other libraries"}
    patches = [Patch(color=colour, label=label) for colour, label in shown.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches))
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
    figure, axes = pyplot.subplots(figsize=(9, 5))
    figure.suptitle(f"Speed of the highest level below the machine's roofs\n{_machine(results)}")
    peak = max(limit.peak for _, _, limit, _ in points)
    bandwidth = max(limit.bandwidth for _, _, limit, _ in points)
    intensities = [flops / limit.bytes for _, flops, limit, _ in points]
    ridge = peak / bandwidth
    low, high = min(*intensities, ridge) / 4, max(*intensities, ridge) * 4
    axes.loglog(
        [low, ridge, high], [bandwidth * low / GIGA, *[peak / GIGA] * 2], color=GREY, linewidth=1
    )
    middle = math.sqrt(low * ridge)
    roofs = (
        (f"arithmetic: {peak / GIGA:,.0f} GFLOP/s", (high, peak / GIGA), (0, 6), "right", "bottom"),
        (
            f"memory: {bandwidth / GIGA:.1f} GB/s",
            (middle, bandwidth * middle / GIGA),
            (8, -4),
            "left",
            "top",
        ),
    )
    for name, place, shift, side, edge in roofs:
        axes.annotate(name, place, shift, textcoords="offset points", ha=side, va=edge)
    for title, flops, limit, seconds in points:
        speed = flops / seconds / GIGA
        axes.loglog([flops / limit.bytes], [speed], "o", label=f"{title}: {speed:,.3g} GFLOP/s")
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
    figure, panels = _panels(
        "Time of a step by kernel at the highest level, ms",
        results,
        [(title, min(len(kernels), KERNELS + 1)) for title, kernels in shown],
    )
    for axes, (_, kernels) in zip(panels, shown, strict=True):
        longest = sorted(kernels.items(), key=lambda item: -item[1])
        names = [textwrap.fill(name, LETTERS) for name, _ in longest[:KERNELS]]
        values = [1e3 * seconds for _, seconds in longest]
        names += ["others"] * (len(values) > KERNELS)
        values = values[:KERNELS] + [sum(values[KERNELS:])] * (len(values) > KERNELS)
        _bars(axes, names, values, [f"{value:.3g}" for value in values], [OURS] * len(names))
    return figure


def _panels(title: str, results: Results, shown: Sequence[tuple[str, int]]) -> tuple[Any, Any]:
    """Return a figure below a title, and a panel in it for each title and number of bars."""
    columns = min(2, len(shown))
    rows = math.ceil(len(shown) / columns)
    height = rows * (0.9 + 0.25 * max(bars for _, bars in shown)) + 1
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(max(6.0 * columns, 1.2 * height), height), squeeze=False
    )
    figure.suptitle(f"{title}\n{_machine(results)}")
    for axes, (name, _) in zip(grid.flat, shown, strict=False):
        axes.set_title(name, fontsize=10)
    for axes in grid.flat[len(shown) :]:
        axes.remove()
    return figure, grid.flat[: len(shown)]


def _bars(
    axes: Any,
    names: Sequence[str],
    values: Sequence[float],
    labels: Sequence[str],
    colours: Sequence[str],
    scatters: Sequence[float] | None = None,
) -> None:
    """Draw named bars, the first on top, each with its value beside it."""
    bars = axes.barh(range(len(names)), values, color=colours, xerr=scatters, ecolor=GREY)
    axes.bar_label(bars, labels, padding=4, color=GREY, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlim(left=0)


def _machine(results: Results) -> str:
    processor, _, _ = str(results.machine["processor"]).partition(" features ")
    return f"{processor}, {results.machine['cpus']} processors, {results.date}"


if __name__ == "__main__":
    matplotlib.use("svg")
    draw(Results.read(Path(sys.argv[1])), Path(sys.argv[1]))

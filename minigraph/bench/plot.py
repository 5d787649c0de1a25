"""The plot of a run, as SVG: `python -m minigraph.bench.plot DIR` draws the results in DIR.

Colours are of middle brightness on a transparent background, for light pages and dark ones.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.patches import Patch

from minigraph.bench.results import OURS, PLOT, Results

GREY, MINIGRAPH, OTHERS = "#808080", "#4c8fd0", "#e08a3c"
STYLE = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), GREY),
    **dict.fromkeys(("xtick.color", "ytick.color", "grid.color"), GREY),
    "svg.hashsalt": "minigraph",  # the same results give the same file
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.15,  # a browser's letters may be wider
}


def draw(results: Results, folder: Path) -> None:
    """Draw a bar for each level and peer: speed relative to level 0, or to the first side."""
    cases = [case for case in results.cases.values() if case.measured]
    if not cases:
        return
    columns = min(2, len(cases))
    rows = math.ceil(len(cases) / columns)
    height = rows * (0.9 + 0.25 * max(len(case.measured) for case in cases)) + 1
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(max(6.0 * columns, 1.2 * height), height), squeeze=False
    )
    first = next(iter(cases[0].measured))
    machine = f"{results.processor}, {results.machine['cpus']} processors, {results.date}"
    if "gpu" in results.versions:
        machine = f"{results.versions['gpu']}, {machine}"
    figure.suptitle(f"Speed of a step relative to {first}: a longer bar is faster\n{machine}")
    for axes in grid.flat[len(cases) :]:
        axes.remove()
    for axes, case in zip(grid.flat, cases, strict=False):
        names, sides = list(case.measured), list(case.measured.values())
        speeds = [sides[0].median / side.median for side in sides]
        scatters = [speed * side.spread / 2 for speed, side in zip(speeds, sides, strict=True)]
        colours = [MINIGRAPH if name.startswith(OURS) else OTHERS for name in names]
        bars = axes.barh(range(len(names)), speeds, color=colours, xerr=scatters, ecolor=GREY)
        labels = [f"{speed:.2f}" for speed in speeds]
        axes.bar_label(bars, labels, padding=4, color=GREY, fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_title(case.title, fontsize=10)
        axes.invert_yaxis()  # the first on top
        axes.margins(x=0.15)
        axes.set_xlim(left=0)
        axes.axvline(1, color=GREY, linewidth=0.8)
    shown = {MINIGRAPH: "minigraph", OTHERS: "other libraries"}
    patches = [Patch(color=colour, label=label) for colour, label in shown.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches))
    figure.savefig(folder / PLOT, transparent=True, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    matplotlib.use("svg")
    with matplotlib.rc_context(STYLE):
        draw(Results.read(Path(sys.argv[1])), Path(sys.argv[1]))

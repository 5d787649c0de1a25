"""The table over several runs: one that others disturb tells less than three of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minigraph.bench.bound import bound
from minigraph.bench.results import EAGER, CaseResult, Results, SideResult, differ
from minigraph.bench.table import NOTHING, Table

COMPILED = "torch.compile"
WITHIN = "~"


@dataclass(frozen=True)
class Figure:
    """What one run says of a case; `mark` stands before it."""

    value: float
    mark: str = ""


def runs(results: Sequence[Results]) -> Table:
    """Return what the runs say of each case: the median, and in brackets each of them."""
    titles = {name: case.title for run in results for name, case in run.cases.items()}
    trained = any(case.images for run in results for case in run.cases.values())
    columns = [column for column in COLUMNS if trained or not column.networks]
    rows = []
    for name, title in titles.items():
        row = [title]
        for column in columns:
            figures = [_figure(run.cases.get(name), column) for run in results]
            row.append(_cell(figures, column.form))
        rows.append(row)
    about = (
        "Medians of the runs, in brackets each of them, of the highest level: how many times as "
        f"fast as the best peer ({WITHIN}: no difference in that run), and the share of the bound. "
        "Of networks also the first call with nothing on disk over that of the fastest "
        f"{COMPILED}, the first call of a second process, and the peak memory over the least of "
        "PyTorch's without compiling."
    )
    return Table("Runs", about, ["", *(column.title for column in columns)], rows)


def _cell(figures: Sequence[Figure | None], form: str) -> str:
    known = [figure.value for figure in figures if figure]
    if not known:
        return NOTHING
    each = [f"{figure.mark}{figure.value:{form}}" if figure else NOTHING for figure in figures]
    return f"{statistics.median(known):{form}} ({', '.join(each)})" if len(each) > 1 else each[0]


# ---------------------------------------------------------------- the columns


def _times(case: CaseResult, ours: SideResult) -> Figure | None:
    best = case.best_peer()
    if best is None:
        return None
    _, peer = best
    return Figure(peer.median / ours.median, "" if differ(ours, peer) else WITHIN)


def _share(case: CaseResult, ours: SideResult) -> Figure | None:
    limit = bound(case)
    return None if limit is None else Figure(limit.seconds / ours.median)


def _cold(case: CaseResult, ours: SideResult) -> Figure | None:
    return _over(ours.cold, [side.cold for side in _sides(case, COMPILED)])


def _warm(case: CaseResult, ours: SideResult) -> Figure | None:
    return Figure(ours.warm) if ours.warm else None


def _peak(case: CaseResult, ours: SideResult) -> Figure | None:
    return _over(ours.peak, [side.peak for side in _sides(case, EAGER)])


def _sides(case: CaseResult, peer: str) -> list[SideResult]:
    return [side for name, side in case.measured.items() if name.partition(", ")[0] == peer]


def _over(ours: float | None, theirs: Sequence[float | None]) -> Figure | None:
    """Return ours over the least of theirs that is known; None if there are none."""
    least = min((value for value in theirs if value), default=None)
    return Figure(ours / least) if ours and least else None


@dataclass(frozen=True)
class Column:
    """What is shown of the highest level of a case.

    form      of a figure, as `format` takes it
    networks  whether expressions have none
    """

    title: str
    figure: Callable[[CaseResult, SideResult], Figure | None]
    form: str
    networks: bool = True


COLUMNS = (
    Column("times as fast", _times, ".2f", networks=False),
    Column("share of the bound", _share, ".0%", networks=False),
    Column(f"cold, of {COMPILED}'s", _cold, ".2f"),
    Column("warm, s", _warm, ".2f"),
    Column("peak memory, of PyTorch's", _peak, ".2f"),
)


def _figure(case: CaseResult | None, column: Column) -> Figure | None:
    """Return what a run says; None if it has nothing to say."""
    levels = case.levels() if case else {}
    if case is None or not levels or (column.networks and not case.images):
        return None
    return column.figure(case, levels[max(levels)])

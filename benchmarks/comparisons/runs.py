"""Tables of several runs: of one machine, or of several processors beside each other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from minigraph.bench.cases import PREDICTIONS
from minigraph.bench.results import EAGER, CaseResult, Results, SideResult
from minigraph.bench.tables import COMPILED, NOTHING, Table

WITHIN = "~"  # stands before a ratio of times that do not differ


@dataclass(frozen=True)
class Figure:
    """What one run says about a case; `mark` stands before it."""

    value: float
    mark: str = ""


@dataclass(frozen=True)
class Column:
    """What is shown of the highest level of a case.

    figure    returns it for one run; None if that run does not know
    form      of the figure, as `format` takes it
    networks  whether it is shown for networks only
    """

    title: str
    figure: Callable[[CaseResult, SideResult], Figure | None]
    form: str
    networks: bool = True


def runs(results: Sequence[Results]) -> Table:
    """Return the median of several runs for each case, followed by each run in brackets."""
    titles = {name: case.title for run in results for name, case in run.cases.items()}
    trained = any(case.images for run in results for case in run.cases.values())
    columns = [column for column in COLUMNS if trained or not column.networks]
    rows = [
        [title, *(_cell([run.cases.get(name) for run in results], column) for column in columns)]
        for name, title in titles.items()
    ]
    about = (
        "Medians of the runs, in brackets each run, of the highest level. Times as fast: as the "
        f"fastest other library; {WITHIN} marks a run without a clear difference. Share of the "
        "bound: the least possible time divided by the measured one. For networks also the first "
        f"call with empty caches relative to the fastest {COMPILED}, the first call of a second "
        "process, and the peak memory relative to PyTorch without compiling."
    )
    return Table("Runs", about, ["", *(column.title for column in columns)], rows)


# How many times as fast as the fastest other library the highest level is to be, and which share of
# the bound of an expression it is to reach, by case.
FAST_ENOUGH = {"mlp": 5.0, "alexnet": 1.7, "resnet18": 2.2, "resnet50": 2.0}
FAST_ENOUGH |= {"abc": 3.0, "abplusc": 3.0, "chain": 3.0, **dict.fromkeys(PREDICTIONS, 1.2)}
NEAR_ENOUGH = {"abc": 0.95, "abplusc": 0.95, "softmax": 0.75, "layernorm": 0.75}


def _aims(name: str) -> Iterator[tuple[str, float, Column]]:
    """Yield what is aimed at in a case: in words, the least figure, and the figure's column."""
    for aims, column in ((FAST_ENOUGH, TIMES), (NEAR_ENOUGH, SHARE)):
        if name in aims:
            yield f"{column.title} ≥ {aims[name]:{column.form}}", aims[name], column


def targets(results: Sequence[Results]) -> Table:
    """Return what was aimed at, with the medians of several runs and what bounds each case."""
    rows = []
    for name in dict.fromkeys(name for run in results for name in run.cases):
        cases = [run.cases.get(name) for run in results]
        shown = next(case for case in cases if case)
        bound = shown.bound
        limit = f"{'memory' if bound.of_memory else 'arithmetic'}: {bound}" if bound else NOTHING
        for aim, least, column in _aims(name):
            figures = [figure.value for case in cases if (figure := _figure(case, column))]
            if figures:
                reached = "yes" if statistics.median(figures) >= least else "no"
                rows.append([shown.title, aim, _cell(cases, column), reached, limit])
    about = (
        "Each target with the median of the runs, in brackets each run. The bound, of the first "
        "run, is what moving the least bytes at the speed of a copy, or computing convolutions and "
        "products at that of a large product, allows."
    )
    return Table("Targets", about, ["", "target", "measured", "reached", "bounded by"], rows)


def processors(by_name: Mapping[str, Sequence[Results]]) -> Table:
    """Return each target with what several processors reached: the medians of their runs."""
    titles = {
        name: case.title
        for several in by_name.values()
        for run in several
        for name, case in run.cases.items()
    }
    rows = []
    for name, title in titles.items():
        each = [[run.cases.get(name) for run in several] for several in by_name.values()]
        for aim, _, column in _aims(name):
            rows.append([title, aim, *(_median(cases, column) for cases in each)])
    about = (
        "Each target beside the median of the runs on each processor. "
        f"{WITHIN} marks a median of runs none of which shows a clear difference."
    )
    return Table("Processors", about, ["", "target", *by_name], rows)


def _median(cases: Sequence[CaseResult | None], column: Column) -> str:
    figures = [figure for case in cases if (figure := _figure(case, column))]
    if not figures:
        return NOTHING
    mark = WITHIN if all(figure.mark for figure in figures) else ""
    return f"{mark}{statistics.median(figure.value for figure in figures):{column.form}}"


def _cell(cases: Sequence[CaseResult | None], column: Column) -> str:
    figures = [_figure(case, column) for case in cases]
    values = [figure.value for figure in figures if figure]
    if not values:
        return NOTHING
    each = [f"{f.mark}{f.value:{column.form}}" if f else NOTHING for f in figures]
    median = f"{statistics.median(values):{column.form}}"
    return f"{median} ({', '.join(each)})" if len(each) > 1 else each[0]


def _figure(case: CaseResult | None, column: Column) -> Figure | None:
    if case is None or not case.highest or (column.networks and not case.images):
        return None
    return column.figure(case, case.highest[1])


def _times(case: CaseResult, ours: SideResult) -> Figure | None:
    if not case.best_peer:
        return None
    _, peer = case.best_peer
    return Figure(peer.median / ours.median, "" if ours.differs(peer) else WITHIN)


def _share(case: CaseResult, ours: SideResult) -> Figure | None:
    return Figure(case.bound.seconds / ours.median) if case.bound else None


def _cold(case: CaseResult, ours: SideResult) -> Figure | None:
    return _relative(ours.cold, (side.cold for side in _peer_sides(case, COMPILED)))


def _warm(case: CaseResult, ours: SideResult) -> Figure | None:
    return Figure(ours.warm) if ours.warm else None


def _peak(case: CaseResult, ours: SideResult) -> Figure | None:
    return _relative(ours.peak, (side.peak for side in _peer_sides(case, EAGER)))


def _peer_sides(case: CaseResult, peer: str) -> list[SideResult]:
    return [side for name, side in case.measured.items() if name.partition(", ")[0] == peer]


def _relative(ours: float | None, theirs: Iterable[float | None]) -> Figure | None:
    """Return ours divided by the least of theirs; None if one of the two is not known."""
    least = min((value for value in theirs if value), default=None)
    return Figure(ours / least) if ours and least else None


TIMES = Column("times as fast", _times, ".2f", networks=False)
SHARE = Column("share of the bound", _share, ".0%", networks=False)
COLUMNS = (
    TIMES,
    SHARE,
    Column(f"cold start / {COMPILED}'s", _cold, ".2f"),
    Column("warm start, s", _warm, ".2f"),
    Column("peak memory / PyTorch's", _peak, ".2f"),
)

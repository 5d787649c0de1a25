"""The tables of one run, as text and as Markdown.

Where two times differ by less than their samples scatter, a table names no winner.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minigraph.bench.cases import LOSSES, USUAL
from minigraph.bench.results import (
    EAGER,
    EAGER_LAST,
    PROCESSES,
    UNFROZEN,
    UNTUNED,
    Bound,
    CaseResult,
    Results,
    SideResult,
)

NOTHING = "-"
SAME = "no difference"
UNCLEAR = f'"{SAME}": two times differ by less than the distance between their quartiles.'
COMPILED = "torch.compile"
WIDTH = 100  # of a sentence in a terminal
INDENT = "  "
LIBRARIES = {
    "torch": "PyTorch",
    "jax": "JAX",
    "onnxruntime": "onnxruntime",
}  # by the beginning of the names of their sides


@dataclass(frozen=True)
class Table:
    """Rows of text below a header.

    about  explains the columns
    notes  what is too long for a row, a line each
    """

    title: str
    about: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def text(self, columns: int) -> list[str]:
        """Return lines for a terminal with so many columns.

        Columns without a figure are left out.  Where a row is too long, its first cell gets a line.
        """
        cells = [
            column
            for column in zip(self.header, *self.rows, strict=True)
            if not {*column[1:]} <= {NOTHING, ""}
        ]
        rows = _ruled(cells)
        if max(map(len, rows)) > columns:
            header, rule, *below = _ruled(cells[1:])
            rows = [INDENT + header, INDENT + rule]
            for title, row in zip(cells[0][1:], below, strict=True):
                rows += [title] * bool(title) + [INDENT + row]
        about = textwrap.wrap(self.about, min(WIDTH, columns))
        notes = [line for note in self.notes for line in textwrap.wrap(note, columns)]
        return [self.title, "", *about, "", *rows, *notes]

    def markdown(self) -> list[str]:
        """Return the rows and the notes as Markdown."""
        cells = [self.header, ["---"] * len(self.header), *self.rows]
        lines = ["| " + " | ".join(map(escaped, row)) + " |" for row in cells]
        for note in self.notes:
            lines += ["", escaped(note)]
        return lines


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _ruled(columns: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of columns, with a rule below their first cells."""
    ruled = [[column[0], "-" * max(map(len, column)), *column[1:]] for column in columns]
    return align_columns(list(zip(*ruled, strict=True)))


def escaped(cell: str) -> str:
    """Return a cell that Markdown shows as it is: `a * b * c` would be in italics."""
    return cell if set(cell) == {"-"} else cell.replace("*", r"\*").replace("|", r"\|")


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, with three digits."""
    ms = 1e3 * seconds
    return f"{ms:.3f} ms" if ms < 1 else f"{ms:.2f} ms" if ms < 10 else f"{ms:.1f} ms"


def tables(results: Results) -> dict[str, Table]:
    """Return the tables of one run, by name."""
    return {
        "levels": _levels(results),
        "peers": _peers(results),
        "inference": _inference(results),
        "processes": _processes(results),
        "bound": _bounds(results),
        "tuning": _tuning(results),
        "losses": _losses(results),
        "sides": _sides(results),
    }


def _ratio(theirs: SideResult, ours: SideResult) -> str:
    """Return how many times as fast ours is."""
    return f"{theirs.median / ours.median:.2f}"


def conclusion(results: Results) -> str:
    """Return in one sentence how fast the highest level is; empty if there is no comparison.

    It is compared with the fastest peer of each case; where no case has one, with level 0.
    """
    cases = [case for case in results.cases.values() if case.highest]
    pairs = [(case, case.best_peer[1]) for case in cases if case.best_peer]
    sides = dict.fromkeys(name for case, _ in pairs for name in case.measured)
    libraries = [
        shown for name, shown in LIBRARIES.items() if any(s.startswith(name) for s in sides)
    ]
    other = f"{libraries[0]}'s best" if len(libraries) == 1 else "the best of " + listed(libraries)
    if not pairs:
        other = "level 0"
        pairs = [(case, case.levels()[0]) for case in cases if {0} < case.levels().keys()]
    clear: list[str] = []
    unclear: list[str] = []
    level = 0
    for case, theirs in pairs:
        assert case.highest is not None
        level, ours = case.highest
        name = case.title.partition(", ")[0]
        if ours.differs(theirs):
            times = theirs.median / ours.median
            first = "" if clear else f" as fast as {other}"
            clear.append(f"{times:.{1 if times >= 1 else 2}f} times{first} on {name}")
        else:
            unclear.append(name)
    if not clear:
        same = f"There is no clear difference between level {level} and {other} on "
        return f"{same}{listed(unclear)}." if unclear else ""
    rest = f"; on {listed(unclear)} there is no clear difference" if unclear else ""
    where = "On this noisy machine level" if results.noisy else "Level"
    return f"{where} {level} is {listed(clear)}{rest}."


def listed(words: Sequence[str]) -> str:
    """Return words with commas and a last "and"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _levels(results: Results) -> Table:
    measured = sorted({level for case in results.cases.values() for level in case.levels()})
    rows = []
    for case in results.cases.values():
        if not case.levels().keys() - {0} or 0 not in case.levels():
            continue  # there is nothing to compare
        row = [case.title]
        for level in measured:
            published = case.published.get(str(level))
            bracket = f" ({published:.0%})" if published else ""
            row.append(_percent(case.levels(), level) + bracket)
        rows.append(row)
    brackets = any("(" in cell for row in rows for cell in row[1:])
    about = (
        "Speed of each level in percent of level 0, whose time is given. "
        + "In brackets: the speed that MegBrain published for its level. " * brackets
        + UNCLEAR
    )
    return Table("Levels", about, ["", *(f"level {level}" for level in measured)], rows)


def _percent(levels: dict[int, SideResult], level: int) -> str:
    if level not in levels or 0 not in levels:
        return NOTHING
    if level == 0:
        return milliseconds(levels[0].median)
    if not levels[0].differs(levels[level]):
        return SAME
    return f"{levels[0].median / levels[level].median:.0%}"


def _peers(results: Results) -> Table:
    rows = []
    for case in results.cases.values():
        if not case.highest or not case.best_peer:
            continue
        (level, ours), (name, peer) = case.highest, case.best_peer
        ratio = _ratio(peer, ours) if ours.differs(peer) else f"{SAME} ({_ratio(peer, ours)})"
        mine = f"{milliseconds(ours.median)} (level {level})"
        rows.append([case.title, mine, name, milliseconds(peer.median), ratio])
    about = (
        "How many times as fast the highest level is as the fastest other library. On expressions, "
        "the others allocate a new result in each call; minigraph reuses results that the caller "
        f"has dropped, and new memory pages cost more time than the arithmetic. {UNCLEAR}"
    )
    notes = [
        f"{case.title}: {name} failed and is left out."
        for case in results.cases.values()
        for name, side in case.sides.items()
        if side.error and not name.startswith("level ")
    ]
    header = ["", "minigraph", "best peer", "its time", "times as fast"]
    return Table("Peers", about, header, rows, notes)


def _inference(results: Results) -> Table:
    rows = []
    for case in results.cases.values():
        apart = [side.apart for side in case.measured.values() if side.apart is not None]
        if not apart or not case.highest:
            continue
        level, ours = case.highest
        unfrozen = case.levels(UNFROZEN).get(level)
        for name, side in (("frozen", ours), ("unfrozen", unfrozen), case.best_peer or ("", None)):
            if not side:
                continue
            cells = [case.title if side is ours else "", name, milliseconds(side.median)]
            cells.append(milliseconds(side.p99) if side.p99 else NOTHING)
            cells.append(NOTHING if side is ours else _ratio(side, ours))
            first = [NOTHING if x is None else f"{x:.2f} s" for x in (side.cold, side.warm)]
            cells += [*first, _memory(side), f"{max(apart):.0e}" if side is ours else ""]
            rows.append(cells)
    about = (
        "Scores of a trained network, with its parameters as constants and as parameters, beside "
        "the fastest other library: the median of a call, and the time that one call in a hundred "
        "takes longer than. Before anything is timed, all sides predict the same batch; the last "
        "column is the largest difference of a score, relative to the largest score. onnxruntime's "
        "first call includes PyTorch's export."
    )
    header = ["", "", "a call", "p99", "frozen is faster", "cold", "warm", "peak memory"]
    return Table("Inference", about, [*header, "scores differ by"], rows)


def _processes(results: Results) -> Table:
    rows = []
    for case in results.cases.values():
        many = {name: side for name, side in case.measured.items() if name.endswith(PROCESSES)}
        ours = next((side for name, side in many.items() if name.startswith("level ")), None)
        if not ours or not case.highest:
            continue
        level, one = case.highest
        row = [case.title, f"{milliseconds(one.median)} (level {level})", milliseconds(ours.median)]
        row += [f"{one.median / ours.median:.0%}", _hidden(ours), _memory(ours)]
        if case.best_processes:
            _, peer = case.best_processes
            ratio = _ratio(peer, ours) if ours.differs(peer) else f"{SAME} ({_ratio(peer, ours)})"
            row += [milliseconds(peer.median), ratio, _hidden(peer), _memory(peer)]
        rows.append(row + [NOTHING] * (len(PARALLEL) - len(row)))
    cpu = results.options.get("device", "cpu") == "cpu"
    share = "share the threads of the one process" if cpu else "have a device each"
    about = (
        f"The same batches in {results.options.get('processes', 1)} processes, which {share}, "
        f"beside PyTorch's DistributedDataParallel with {'gloo' if cpu else 'nccl'}. Hidden: "
        "of the shorter of the backward pass, two thirds of computing alone, and communicating "
        "alone, the share by which the step is shorter than both together. Memory is that of all "
        "processes. " + UNCLEAR
    )
    return Table("Processes", about, PARALLEL, rows)


PARALLEL = ["", "one process", "processes", "speed", "hidden", "memory"]
PARALLEL += ["DDP", "times as fast", "DDP's hidden", "DDP's memory"]


def _hidden(side: SideResult) -> str:
    return NOTHING if side.hidden is None else f"{side.hidden:.0%}"


def _memory(side: SideResult) -> str:
    return f"{side.peak / (1 << 20):,.0f} MiB" if side.peak else NOTHING


def _bounds(results: Results) -> Table:
    rows = []
    for case in results.cases.values():
        if case.highest and case.bound:
            rows.append([case.title, *_bound(case.bound, *case.highest)])
    about = (
        "The bound is the least time of a step: the time to move its bytes at the speed of the "
        "fastest copy, or to compute its convolutions and matrix products at the speed of a matrix "
        "product, whichever is longer; the speeds are measured in the same rounds. The share is "
        "the bound divided by the step's time. It exceeds 100% where data fit the caches, and with "
        "Winograd's algorithm, which needs fewer operations than the direct one that is counted."
    )
    header = ["", "share of the bound", "bound", "limited by", "from"]
    return Table("Bounds", about, header, rows)


def _bound(bound: Bound, level: int, ours: SideResult) -> list[str]:
    share = f"{bound.seconds / ours.median:.0%} (level {level})"
    limit = "memory" if bound.of_memory else "arithmetic"
    return [share, milliseconds(bound.seconds), limit, str(bound)]


def _tuning(results: Results) -> Table:
    rows = []
    for case in results.cases.values():
        title, levels = case.title, case.levels()
        for level, untuned in case.levels(UNTUNED).items():
            cells = [NOTHING, NOTHING]
            if level in levels:
                tuned = levels[level]
                ratio = _ratio(untuned, tuned) if untuned.differs(tuned) else SAME
                cells = [milliseconds(tuned.median), ratio]
            rows.append([title, f"level {level}", milliseconds(untuned.median), *cells])
            title = ""  # stands in the first row only
    about = "How many times as fast a level is with measured algorithms as with heuristics."
    return Table("Tuning", about, ["", "", "untuned", "tuned", "times as fast"], rows)


def _losses(results: Results) -> Table:
    rows, notes = [], []
    for case in results.cases.values():
        asked = {name: side for name, side in case.sides.items() if side.losses or side.lost}
        if not asked:
            continue
        level = next((name for name in asked if name not in (EAGER, EAGER_LAST)), NOTHING)
        ours, theirs, again = (
            asked[name].losses if name in asked else [] for name in (level, EAGER, EAGER_LAST)
        )
        ends = [f"{x[i]:.4f}" if x else NOTHING for x in (ours, theirs) for i in (0, -1)]
        apart = [
            f"{loss_difference(x, theirs):.1e}" if x and theirs else NOTHING for x in (ours, again)
        ]
        rows.append([case.title, level, *ends, *apart])
        notes += [f"{case.title}, {name}: {side.lost}" for name, side in asked.items() if side.lost]
    about = (
        f"First and last loss of {LOSSES} training steps of minigraph and of PyTorch, from the "
        "same parameters, on the same batches, without dropout, in "
        f"{results.options.get('precision', USUAL)}. The difference is the largest of all steps, "
        "divided by PyTorch's loss; the last column has that of PyTorch with channels last."
    )
    header = ["", "", "first", "last", "PyTorch's first", "PyTorch's last"]
    header += ["largest difference", "PyTorch's own"]
    return Table("Losses", about, header, rows, notes)


def loss_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the largest difference divided by the second's loss; NaN if a loss is NaN."""
    a, b = np.array(ours), np.array(theirs)
    return float(np.max(np.abs(a - b) / np.maximum(np.abs(b), np.finfo(np.float32).tiny)))


def _sides(results: Results) -> Table:
    rows, notes = [], []
    for case in results.cases.values():
        title = case.title
        for name, side in case.sides.items():
            if side.seconds or side.error:
                rows.append([title, name, *_side(case, side)])
                title = ""  # stands in the first row only
            if side.error:
                notes.append(f"{case.title}, {name}: {side.error}")
    about = (
        "A step's time is the median of its turns; the spread is the distance between their "
        "quartiles divided by the median. Cold and warm are the first call, which makes data and "
        "weights, compiles and tunes: with empty caches, and in a second process. The import of "
        "the library is not counted. On a CPU, peak memory is that of the whole process. PyTorch "
        "with channels last uses its fused Adam."
    )
    header = ["", "side", "a step", "spread", "turns", "images/s", "cold", "warm", "peak memory"]
    return Table("Every side", about, header, rows, notes)


def _side(case: CaseResult, side: SideResult) -> list[str]:
    first = [NOTHING if x is None else f"{x:.2f} s" for x in (side.cold, side.warm)]
    if not side.seconds:
        return ["failed", *[NOTHING] * 3, *first, NOTHING]
    step = milliseconds(side.median) + (", then failed" if side.error else "")
    images = f"{case.images / side.median:,.0f}" if case.images else NOTHING
    spread = f"{side.spread:.0%}" if side.spread < 10 else "over 1000%"
    return [step, spread, str(len(side.seconds)), images, *first, _memory(side)]

"""The tables, as text for a terminal and as Markdown.

Where two sides differ by less than their samples scatter, a table says so and names no winner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigraph.bench.bound import bound
from minigraph.bench.results import CaseResult, Results, SideResult, differ

NOTHING = "-"
SAME = "no difference"


@dataclass(frozen=True)
class Table:
    """Rows of text below a header.

    about  a sentence on what they say
    notes  what is too long for a row, a line each
    """

    title: str
    about: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def text(self) -> list[str]:
        """Return lines for a terminal, in which columns begin below one another."""
        cells = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
        rule = "  ".join("-" * width for width in widths)
        return [self.title, "", lines[0], rule, *lines[1:], *self.notes]

    def markdown(self) -> list[str]:
        """Return the rows and the notes as Markdown."""
        cells = [self.header, ["---"] * len(self.header), *self.rows]
        lines = ["| " + " | ".join(map(_escaped, row)) + " |" for row in cells]
        for note in self.notes:
            lines += ["", _escaped(note)]
        return lines


def _escaped(cell: str) -> str:
    """Return a cell that Markdown shows as it is: `a * b * c` would be in italics."""
    return cell if set(cell) == {"-"} else cell.replace("*", r"\*").replace("|", r"\|")


def tables(results: Results) -> dict[str, Table]:
    """Return all tables, by name."""
    return {
        "levels": _levels(results),
        "peers": _peers(results),
        "bound": _bounds(results),
        "sides": _sides(results),
    }


def _levels(results: Results) -> Table:
    measured = sorted({level for case in results.cases.values() for level in case.levels()})
    rows = []
    for case in results.cases.values():
        levels = case.levels()
        row = [case.title]
        for level in measured:
            published = case.published.get(str(level))
            told = f" ({published:.0%})" if published else ""
            row.append(_percent(levels, level) + told)
        rows.append(row)
    return Table(
        "Levels",
        "Speed in percent of level 0 (opt0), whose time is given; in brackets what MegBrain "
        "published for its levels.",
        ["", *(f"level {level}" for level in measured)],
        rows,
    )


def _percent(levels: dict[int, SideResult], level: int) -> str:
    if level not in levels:
        return NOTHING
    if level == 0:
        return milliseconds(levels[0].median)
    if 0 not in levels:
        return NOTHING
    if not differ(levels[0], levels[level]):
        return SAME
    return f"{levels[0].median / levels[level].median:.0%}"


def _peers(results: Results) -> Table:
    rows = []
    for case in results.cases.values():
        levels, best = case.levels(), case.best_peer()
        if not levels:
            continue
        level = max(levels)
        row = [case.title, f"{milliseconds(levels[level].median)} (level {level})"]
        if best is None:
            rows.append([*row, NOTHING, NOTHING, NOTHING])
            continue
        name, peer = best
        ratio = f"{peer.median / levels[level].median:.2f}"
        times = ratio if differ(levels[level], peer) else f"{SAME} ({ratio})"
        rows.append([*row, name, milliseconds(peer.median), times])
    about = "How many times as fast the highest level is as the fastest peer."
    missing = [f"{name} is not installed." for name in results.missing]
    header = ["", "minigraph", "best peer", "its time", "times as fast"]
    return Table("Peers", " ".join([about, *missing]), header, rows)


def _bounds(results: Results) -> Table:
    rows = []
    for case in results.cases.values():
        levels, limit = case.levels(), bound(case)
        if not levels:
            continue
        if limit is None:
            rows.append([case.title, *[NOTHING] * 4])
            continue
        level = max(levels)
        share = limit.seconds / levels[level].median
        kind = "memory" if limit.of_memory else "arithmetic"
        rows.append(
            [
                case.title,
                f"{share:.0%} (level {level})",
                milliseconds(limit.seconds),
                kind,
                str(limit),
            ]
        )
    about = (
        "What share of the bound is reached: the slower of moving the bytes that a step has to "
        "move at the speed of the fastest copy, and of its convolutions and products at the speed "
        "of the fastest of these, measured in the same rounds. What fits the caches moves faster."
    )
    return Table("Bounds", about, ["", "share", "bound", "of", "which is"], rows)


def _sides(results: Results) -> Table:
    rows, notes = [], []
    for case in results.cases.values():
        title = case.title
        for name, side in case.sides.items():
            if side.seconds or side.error:
                rows.append([title, name, *_side(case, side)])
                title = ""  # not in every row
            if side.error:
                notes.append(f"{case.title}, {name}: {side.error}")
    about = (
        "Time of a step: the median of so many turns, and the distance between their quartiles "
        "over it. First calls begin with an imported library and include compiling and tuning: "
        "with nothing on disk (cold), and in a second process (warm). PyTorch's channels last "
        "come with its fused Adam."
    )
    header = ["", "side", "a step", "spread", "turns", "images/s", "cold", "warm", "peak memory"]
    return Table("Every side", about, header, rows, notes)


def _side(case: CaseResult, side: SideResult) -> list[str]:
    first = [_seconds(side.cold), _seconds(side.warm)]
    if not side.seconds:
        return ["failed", *[NOTHING] * 3, *first, NOTHING]
    step = milliseconds(side.median) + (", then failed" if side.error else "")
    images = f"{case.images / side.median:,.0f}" if case.images else NOTHING
    peak = f"{side.peak / (1 << 20):,.0f} MiB" if side.peak else NOTHING
    spread = f"{side.spread:.0%}" if side.spread < 10 else "over 1000%"
    return [step, spread, str(len(side.seconds)), images, *first, peak]


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, with three digits."""
    ms = 1e3 * seconds
    return f"{ms:.3f} ms" if ms < 1 else f"{ms:.2f} ms" if ms < 10 else f"{ms:.1f} ms"


def _seconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{seconds:.2f} s"

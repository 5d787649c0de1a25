"""The tables of one run and the sentences around them, as text and as Markdown.

A table gives no ratio if neither side is faster in most rounds.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigraph.bench.cases import LOSSES
from minigraph.bench.results import (
    CHANNELS_LAST,
    LEVEL_PREFIX,
    MAX_USUAL_SPREAD,
    MIN_RELATIVE_DIFFERENCE,
    CaseResult,
    Results,
    SideResult,
)
from minigraph.inspect.report import align_columns, milliseconds

NOTHING = "-"
UNCLEAR = "unclear"
LEGEND = (
    f'"{UNCLEAR}": neither is faster by {MIN_RELATIVE_DIFFERENCE:.0%} in three quarters of the '
    "rounds."
)
WIDTH = 100  # of a sentence in a terminal
INDENT = "  "


@dataclass(frozen=True)
class Table:
    """Rows of text below a header; empty columns are omitted.

    about  explanations of columns by their names; "" is the first column
    notes  texts that are too long for a row
    """

    title: str
    about: Mapping[str, str]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    @property
    def _columns(self) -> list[tuple[str, ...]]:
        columns = zip(self.header, *self.rows, strict=True)
        return [column for column in columns if not {*column[1:]} <= {NOTHING, ""}]

    @property
    def explanation(self) -> str:
        """The explanations of the columns that are not omitted."""
        names = {column[0] for column in self._columns}
        return " ".join(text for name, text in self.about.items() if text and name in names)

    def text(self, columns: int) -> list[str]:
        """Return lines for a terminal's width; the first cell of a long row has its own line."""
        cells = self._columns
        rows = _ruled(cells)
        if max(map(len, rows)) > columns:
            header, rule, *below = _ruled(cells[1:])
            rows = [INDENT + header, INDENT + rule]
            for title, row in zip(cells[0][1:], below, strict=True):
                rows += [title] * bool(title) + [INDENT + row]
        notes = [line for note in self.notes for line in textwrap.wrap(note, columns)]
        return [self.title, "", *_wrapped([self.explanation], columns), "", *rows, *notes]

    def markdown(self) -> list[str]:
        header, *rows = zip(*self._columns, strict=True)
        cells = [header, ["---"] * len(header), *rows]
        lines = ["| " + " | ".join(map(escaped, row)) + " |" for row in cells]
        for note in self.notes:
            lines += ["", escaped(note)]
        return lines


def _ruled(columns: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of columns, with a rule below their first cells."""
    ruled = [[column[0], "-" * max(map(len, column)), *column[1:]] for column in columns]
    return align_columns(list(zip(*ruled, strict=True)))


def _wrapped(sentences: Sequence[str], columns: int) -> list[str]:
    return [line for each in sentences for line in textwrap.wrap(each, min(columns, WIDTH))]


def escaped(cell: str) -> str:
    """Return a cell escaped for Markdown, which would print `a * b * c` in italics."""
    return cell if set(cell) == {"-"} else cell.replace("*", r"\*").replace("|", r"\|")


def listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


# ---------------------------------------------------------------- tables


def tables(results: Results) -> dict[str, Table]:
    return {
        "levels": _levels(results),
        "peers": _peers(results),
        "frontend": _frontend(results),
        "sides": _sides(results),
    }


def _levels(results: Results) -> Table:
    cases = [case for case in results.cases.values() if len(case.ours) > 1]
    names = sorted({name for case in cases for name in case.ours})
    rows = []
    for case in cases:
        first = next(iter(case.ours.values()))
        cells = {
            name: milliseconds(side.median) + f" ({_times(first, side)})" * (side is not first)
            for name, side in case.ours.items()
        }
        memory = _memory(case.highest[1]) if case.highest else NOTHING
        rows.append([case.title, *(cells.get(name, NOTHING) for name in names), memory])
    unclear = UNCLEAR in "".join(cell for row in rows for cell in row)
    about = {
        "": "The time of a step at each level of optimisation, and how many times as fast it is as "
        f"the first level in the row. {LEGEND if unclear else ''}".rstrip(),
        "memory": "Memory is the peak of the process of the highest level.",
    }
    return Table("Levels", about, ["", *names, "memory"], rows)


def _times(theirs: SideResult, ours: SideResult) -> str:
    return f"{theirs.median / ours.median:.2f} x" if ours.differs(theirs) else UNCLEAR


def _peers(results: Results) -> Table:
    rows = []
    for case in results.cases.values():
        if case.highest and case.best_peer:
            (level, ours), (name, peer) = case.highest, case.best_peer
            row = [case.title, level, milliseconds(ours.median), _memory(ours)]
            row += [name, milliseconds(peer.median), _memory(peer), _times(peer, ours)]
            rows.append(row)
    about = {
        "": "How many times as fast the highest level is as the fastest other library. On "
        "expressions, the others allocate a new result in each call; minigraph reuses results that "
        "the caller has dropped, and new memory pages cost more time than the arithmetic. "
        f"{LEGEND}"
    }
    notes = [
        f"{case.title}: {name} failed and is left out."
        for case in results.cases.values()
        for name, side in case.sides.items()
        if side.error and not name.startswith(LEVEL_PREFIX)
    ]
    header = ["", "minigraph", "a step", "memory", "fastest other", "its step", "its memory"]
    return Table("Other libraries", about, [*header, "times as fast"], rows, notes)


def _frontend(results: Results) -> Table:
    cases = [case for case in results.cases.values() if case.best_peer and case.frontend]
    names = sorted({name for case in cases for name in case.frontend})
    rows = []
    for case in cases:
        assert case.best_peer is not None
        name, peer = case.best_peer
        sides = [case.frontend.get(each) for each in names]
        sides.append(case.highest[1] if case.highest else None)
        times = (
            f"{milliseconds(x.median)} ({_times(peer, x)}), {_memory(x)}" if x else NOTHING
            for x in sides
        )
        rows.append([case.title, f"{milliseconds(peer.median)} ({name}), {_memory(peer)}", *times])
    about = {
        "": "A model of PyTorch that minigraph runs, beside the fastest other library and beside "
        "the same network written in minigraph: the time of a step, how many times as fast it is, "
        f"and the peak of memory. {LEGEND}"
    }
    return Table("PyTorch's models", about, ["", "fastest other", *names, "in minigraph"], rows)


def _memory(side: SideResult) -> str:
    return f"{side.peak / (1 << 20):,.0f} MiB" if side.peak else NOTHING


def _sides(results: Results) -> Table:
    rows, notes = [], []
    for case in results.cases.values():
        title = case.title
        for name, side in case.sides.items():
            if side.seconds or side.error:
                rows.append([title, name, *_side(case, side)])
                title = ""  # only the first row has it
            failures = (side.error, side.losses_error and f"losses: {side.losses_error}")
            notes += [f"{case.title}, {name}: {failure}" for failure in failures if failure]
    fused = any(CHANNELS_LAST in name for case in results.cases.values() for name in case.sides)
    about = {
        "": "PyTorch with channels last uses its fused Adam." * fused,
        "a step": "A step's time is the median of its turns.",
        "spread": "The spread is the distance between the turns' quartiles, divided by it.",
        "p99": "One call in a hundred takes longer than p99.",
        "of the roofline": "The roofline is an estimate: the time of the level's kernels at the "
        "speed of a large copy and a large product. Its share exceeds 100% where data fit the "
        "caches, and with Winograd's algorithm, which multiplies less.",
        "cold": "Cold is the first call, which makes data and weights, compiles and tunes, with "
        "empty caches; the library's import is not counted.",
        "warm": "Warm is the first call of a second process.",
        "memory": "On a CPU, memory is the peak of the whole process.",
        "difference": "The difference is the largest, relative to PyTorch's loss in any of "
        f"{LOSSES} steps; of predictions, to the largest score of PyTorch, else of the first side.",
    }
    header = ["", "side", "a step", "spread", "p99", "turns", "images/s", "of the roofline"]
    header += ["cold", "warm", "memory", "difference"]
    return Table("Every side", about, header, rows, notes)


def _side(case: CaseResult, side: SideResult) -> list[str]:
    cells = ["failed", *[NOTHING] * 5]
    if side.seconds:
        step = milliseconds(side.median) + (", then failed" if side.error else "")
        spread = f"{side.spread:.0%}" if side.spread < 10 else "over 1000%"
        p99 = milliseconds(side.p99) if side.p99 else NOTHING
        images = f"{case.images / side.median:,.0f}" if case.images else NOTHING
        share = f"{side.roofline / side.median:.0%}" if side.roofline else NOTHING
        cells = [step, spread, p99, str(len(side.seconds)), images, share]
    first = [NOTHING if x is None else f"{x:.2f} s" for x in (side.cold, side.warm)]
    difference = f"{side.difference:.1e}" if side.difference else NOTHING
    return [*cells, *first, _memory(side), difference]


# ---------------------------------------------------------------- sentences


def remarks(results: Results) -> list[str]:
    """Return the sentences before the tables."""
    lines = []
    if results.options.get("quick"):
        lines.append(
            "A quick run: images of 64 x 64, small batches, few turns, little time to tune; "
            "leave out --quick for reliable figures."
        )
    if results.spread > MAX_USUAL_SPREAD:
        lines.append(
            f"The machine was noisy: half of the sides have a spread above {results.spread:.0%} "
            f"(up to {MAX_USUAL_SPREAD:.0%} is usual); trust only large differences."
        )
    lines += _out_of_time(results)
    lines += [f"Not compared: {name} {why}." for name, why in results.missing.items()]
    if results.interrupted:
        lines.append("Interrupted: this is what was measured until then.")
    return lines


def _out_of_time(results: Results) -> list[str]:
    """Return a sentence that lists what was left out for lack of time, if anything."""
    planned = results.options.get("repeats", 0)
    measured = [side for case in results.cases.values() for side in case.measured.values()]
    fewest = min((len(side.seconds) for side in measured if not side.error), default=planned)
    parts = [
        f"{listed(sides) if sides else 'all'} of {title.partition(', ')[0]}"
        for title, sides in results.left_out.items()
    ]
    facts = [f"some sides have {fewest} of {planned} turns"] * (fewest < planned)
    facts += [f"not measured are {'; '.join(parts)}"] * bool(parts)
    if results.interrupted or not facts:
        return []
    return [f"The time was up: {'; '.join(facts)}. --minutes gives a run more time."]


def about(results: Results) -> list[str]:
    """Return lines on the machine, the versions and the options."""
    machine = results.machine
    memory = f", {machine['memory'] / (1 << 30):.0f} GiB" if machine.get("memory") else ""
    options = [
        name.replace("_", " ") + f" {_option_text(value)}" * (value is not True)
        for name, value in results.options.items()
        if value is not None and value is not False
    ]
    return [
        f"{results.date}, {results.processor}, {machine['cpus']} processors{memory}",
        ", ".join(f"{name} {version}" for name, version in results.versions.items()),
        ", ".join(options),
    ]


def _option_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return str(value)


def terminal_lines(results: Results) -> list[str]:
    # A pipe has no width.
    columns = shutil.get_terminal_size((sys.maxsize, 0)).columns
    lines = _wrapped([*about(results), *remarks(results)], columns)
    for table in tables(results).values():
        if table.rows:
            lines += ["", *table.text(columns)]
    return lines


def markdown_page(results: Results) -> str:
    parts = ["# minigraph bench", "\n".join(f"* {line}" for line in about(results))]
    parts += [f"**{remark}**" for remark in remarks(results)]
    for table in tables(results).values():
        if table.rows:
            parts += [f"## {table.title}", table.explanation, "\n".join(table.markdown())]
    return "\n\n".join(parts) + "\n"

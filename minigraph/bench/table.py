"""A table, as text for a terminal and as Markdown, and how figures look in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, with three digits."""
    ms = 1e3 * seconds
    return f"{ms:.3f} ms" if ms < 1 else f"{ms:.2f} ms" if ms < 10 else f"{ms:.1f} ms"

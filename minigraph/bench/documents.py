"""The tables of the repository's documents, made from its results so that nobody types a figure.

    python -m minigraph.bench.documents [--check] [--results DIR] [FILE ...]

What lies between `<!-- bench: RUN[,RUN...] TABLE -->` and `<!-- end -->` becomes that table of the
run in DIR/RUN.  Only the table `runs` takes several.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from minigraph.bench.page import about, remarks
from minigraph.bench.results import Results, read
from minigraph.bench.runs import runs
from minigraph.bench.summary import tables
from minigraph.errors import GraphError

FILES = ("README.md", "docs/performance.md")
RESULTS = "benchmarks/results"
BEGIN = "<!-- bench: "
MARKED = re.compile(rf"({BEGIN}([^\n]*?) -->\n)(?:(?!{BEGIN}).)*?(<!-- end -->)", re.S)


def filled(text: str, folder: Path) -> str:
    """Return a document with its tables made anew from the results in `folder`."""
    known: dict[str, Results] = {}

    def table(match: re.Match[str]) -> str:
        names, _, name = match[2].partition(" ")
        if not name:
            raise GraphError(f"<!-- bench: {match[2]} --> names no RUN[,RUN...] TABLE")
        several = names.split(",")
        known.update({run: read(folder / run) for run in several if run not in known})
        lines = _lines([known[run] for run in several], name)
        return "\n".join([match[1].rstrip("\n"), *lines, match[3]])

    made, count = MARKED.subn(table, text)
    if count < text.count(BEGIN):
        raise GraphError(f"a table that begins with {BEGIN}... --> has no <!-- end -->")
    return made


def _lines(results: Sequence[Results], name: str) -> list[str]:
    """Return a table as Markdown; "about" is the machine and the versions instead."""
    if name == "runs":
        return runs(results).markdown()
    if len(results) > 1:
        raise GraphError(f"{name!r} is of one run; of several there is the table runs")
    (only,) = results
    if name == "about":
        return [f"* {line}" for line in [*about(only), *remarks(only)]]
    found = tables(only)
    if name not in found:
        raise GraphError(f"there is no table {name!r}; use about, runs, {', '.join(found)}")
    return found[name].markdown()


def main(arguments: list[str] | None = None) -> int:
    """Fill documents in, or say which are out of date; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if outdated")
    parser.add_argument("--results", type=Path, default=Path(RESULTS), metavar="DIR")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=", ".join(FILES))
    asked = parser.parse_args(arguments)
    outdated = False
    try:
        for path in asked.files or map(Path, FILES):
            old = path.read_text()
            new = filled(old, asked.results)
            if new == old:
                continue
            outdated = True
            if asked.check:
                advice = "python -m minigraph.bench.documents fills it in"
                print(f"the tables of {path} are out of date; {advice}", file=sys.stderr)
            else:
                path.write_text(new)
    except (GraphError, OSError) as error:
        print(f"documents: {error}", file=sys.stderr)
        return 1
    return int(asked.check and outdated)


if __name__ == "__main__":
    sys.exit(main())

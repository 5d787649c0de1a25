"""The tables of the repository's documents, made from its results so that nobody types a figure.

    python -m minigraph.bench.documents [--check] [--results DIR] [FILE ...]

What lies between `<!-- bench: RUN/TABLE -->` and `<!-- end -->` becomes that table of DIR/RUN.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from minigraph.bench.page import about, remarks
from minigraph.bench.results import Results, read
from minigraph.bench.table import tables
from minigraph.errors import GraphError

FILES = ("README.md", "docs/performance.md")
RESULTS = "benchmarks/results"
MARKED = re.compile(r"(<!-- bench: (\S+) -->\n).*?(<!-- end -->)", re.S)


def filled(text: str, folder: Path) -> str:
    """Return a document with its tables made anew from the results in `folder`."""
    known: dict[str, Results] = {}

    def table(match: re.Match[str]) -> str:
        run, _, name = match[2].partition("/")
        if run not in known:
            known[run] = read(folder / run)
        return f"{match[1]}{_part(known[run], name)}\n{match[3]}"

    return MARKED.sub(table, text)


def _part(results: Results, name: str) -> str:
    """Return a table as Markdown; "about" is the machine and the versions instead."""
    found = tables(results)
    if name == "about":
        return "\n".join(f"* {line}" for line in [*about(results), *remarks(results)])
    if name not in found:
        raise GraphError(f"there is no table {name!r}; use about, {', '.join(found)}")
    return "\n".join(found[name].markdown())


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

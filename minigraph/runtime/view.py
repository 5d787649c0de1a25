"""`minigraph view` and `minigraph diff`: pages and differences of functions."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minigraph.arguments import shorten
from minigraph.errors import GraphError
from minigraph.inspect.comparison import differences
from minigraph.inspect.page import from_file, to_html
from minigraph.inspect.record import Description, to_text
from minigraph.platform.regular_file import write_text
from minigraph.runtime.function import collecting

Output = tuple[dict[str, Any], list[str]]  # as JSON, and as lines for a person
MAX_VALUE_LENGTH = 60  # characters of a value in a line


def add_view(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE|SCRIPT",
        help="a page, descriptions in JSON, a model (.onnx), or a program in Python (.py), which "
        "is run: the page shows the functions that it compiled",
    )
    parser.add_argument("--out", metavar="PATH", help="write there: a page, or JSON to PATH.json")
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        help="arguments of the program; options of minigraph view must precede FILE",
    ).required = False  # otherwise the help of Python 3.11 calls them required


def add_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a page, or descriptions in JSON")
    parser.add_argument(
        "b", metavar="B", nargs="?", help="another one; without it the first two functions of A"
    )


def view(arguments: argparse.Namespace, functions: tuple[Description, ...] | None = None) -> Output:
    """Open the page of a file or program in the browser; without a browser, print its path.

    functions  functions of the file, if it is neither a page nor a program
    """
    path = Path(arguments.file)
    if arguments.arguments and path.suffix != ".py":
        unused = " ".join(arguments.arguments)
        raise GraphError(f"{path} is no program, so it takes no {unused}; put options before it")
    if path.suffix == ".py":
        functions = _functions_of(path, arguments.arguments)
    elif functions is None:
        functions = from_file(path)
    if arguments.out or path.suffix not in (".html", ".htm"):
        path = Path(arguments.out or Path(tempfile.mkdtemp(prefix="minigraph-")) / "page.html")
        as_json = path.suffix == ".json"
        write_text(path, to_text(functions) if as_json else to_html(functions))
    opened = path.suffix != ".json" and _open(path)
    titles = [function.title for function in functions]
    data = {"file": str(path), "functions": titles, "opened": opened}
    lines = [f"{path}: {'; '.join(titles)}"]
    if "--out" in arguments.arguments and not arguments.out:
        lines.append("the program got --out; put options of minigraph view before the program")
    return data, lines


def diff(arguments: argparse.Namespace) -> Output:
    """Return the differences of two functions."""
    first = from_file(arguments.a)
    second = from_file(arguments.b) if arguments.b else first[1:]
    if not first or not second:
        raise GraphError(f"{arguments.a} holds {len(first)} function; give another file to compare")
    a, b = first[0], second[0]
    all_differences = differences(a, b)
    data = {"a": a.title, "b": b.title, "differences": [each._asdict() for each in all_differences]}
    before, after = (shorten(function.title, MAX_VALUE_LENGTH) for function in (a, b))
    lines = [f"{before} -> {after}"]
    subject = ""
    for each in all_differences:
        if each.subject != subject:
            subject = each.subject
            lines.append(subject)
        what, before, after = (shorten(text, MAX_VALUE_LENGTH) for text in each[1:])
        lines.append(f"  {what}: {before} -> {after}")
    return data, lines if all_differences else [*lines, "no difference"]


def _functions_of(path: Path, arguments: Sequence[str]) -> tuple[Description, ...]:
    """Run a program until it ends or is interrupted; return the functions that it compiled."""
    if not path.is_file():
        raise GraphError(f"program {path} does not exist")
    before = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        with collecting() as compiled, contextlib.suppress(SystemExit, KeyboardInterrupt):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before
    functions = [function.describe() for function in compiled if function.ready]
    if not functions:
        raise GraphError(f"{path} compiled no function")
    return tuple(functions)


def _open(path: Path) -> bool:
    """Open a page if the terminal's desktop has a browser; return whether it has."""
    shows = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    return shows and webbrowser.open(path.resolve().as_uri())

"""The page of a function: writing one self-contained HTML file, and reading it.

Files of JSON with the same descriptions can be read, too.
"""

from __future__ import annotations

import base64
import html
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from minigraph.errors import GraphError, reason
from minigraph.inspect.record import Description, from_text, to_text
from minigraph.platform.regular_file import read

FOLDER = Path(__file__).parent
SCRIPTS = ("model", "layout", "graph", "changes", "details", "charts", "search", "main")
DATA = re.compile(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]*)</script>')
LARGEST = 1 << 28  # bytes of a page's unpacked JSON, at most


def to_html(functions: Sequence[Description]) -> str:
    """Return the page of some functions, the first of which it shows first."""
    packed = zlib.compress(to_text(tuple(functions)).encode(), 9)
    parts = {
        "TITLE": html.escape(f"minigraph: {', '.join(d.title for d in functions)}"),
        "STYLE": _text("page.css"),
        "DATA": base64.b64encode(packed).decode(),
        "SCRIPT": "\n".join(_text(f"{name}.js") for name in SCRIPTS),
    }
    return re.sub("|".join(parts), lambda match: parts[match[0]], _text("page.html"))


def from_file(path: str | os.PathLike[str]) -> tuple[Description, ...]:
    """Return the descriptions in a page or in a file of JSON; GraphError if it holds none."""
    try:
        text = read(path)
    except (OSError, ValueError) as error:
        raise GraphError(f"{os.fspath(path)} cannot be read: {reason(error)}") from None
    try:
        return from_text(_unpacked(text))
    except ValueError as error:
        raise GraphError(
            f"{os.fspath(path)} {error}; `step.to_html(path)` and `minigraph view` write what can "
            "be read"
        ) from None


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _unpacked(content: bytes) -> bytes:
    """Return the JSON in a page, or other text unchanged; raise ValueError for a damaged page."""
    found = DATA.search(content.decode(errors="replace"))
    if not found and content.lstrip()[:1] != b"{":
        raise ValueError("is no page of minigraph, nor the JSON of one")
    if not found:
        return content
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(base64.b64decode(found[1]), LARGEST)
    except zlib.error:
        raise ValueError("is a damaged page") from None
    if not unpacking.eof:
        raise ValueError("is a page that is cut off, or larger than any page is")
    return text

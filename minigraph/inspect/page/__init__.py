"""The page of a function: write one self-contained HTML file, and read it or the same JSON."""

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
MAX_BYTES = 1 << 28  # of a page's unpacked JSON


def to_html(functions: Sequence[Description]) -> str:
    """Return the page of some functions; it shows the first one first."""
    packed = zlib.compress(to_text(tuple(functions)).encode(), 9)
    parts = {
        "TITLE": html.escape(f"minigraph: {', '.join(d.title for d in functions)}"),
        "STYLE": _text("page.css"),
        "DATA": base64.b64encode(packed).decode(),
        "SCRIPT": "\n".join(_text(f"{name}.js") for name in SCRIPTS),
    }
    return re.sub("|".join(parts), lambda match: parts[match[0]], _text("page.html"))


def from_file(path: str | os.PathLike[str]) -> tuple[Description, ...]:
    """Return the descriptions in a page or a JSON file; raise GraphError without them."""
    try:
        text = read(path)
    except (OSError, ValueError) as error:
        raise GraphError(f"{os.fspath(path)} cannot be read: {reason(error)}") from None
    try:
        return from_text(_unpacked(text))
    except ValueError as error:
        raise GraphError(
            f"{os.fspath(path)} {error}; `step.to_html(path)` and `minigraph view` write pages"
        ) from None


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _unpacked(content: bytes) -> bytes:
    """Return the JSON in a page, or other text unchanged; raise ValueError for a damaged page."""
    match = DATA.search(content.decode(errors="replace"))
    if not match and content.lstrip()[:1] != b"{":
        raise ValueError("is neither a page of minigraph nor the JSON of one")
    if not match:
        return content
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(base64.b64decode(match[1]), MAX_BYTES)
    except zlib.error:
        raise ValueError("is a damaged page") from None
    if not unpacking.eof:
        raise ValueError("is a truncated page, or too large")
    return text

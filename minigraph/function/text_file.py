"""What functions write for people and their programs: pages, graphs, traces."""

from __future__ import annotations

import os
from pathlib import Path

from minigraph.errors import GraphError, reason


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text in UTF-8; GraphError if the file cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise GraphError(f"{path} cannot be written: {reason(error)}") from error

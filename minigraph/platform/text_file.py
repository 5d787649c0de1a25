"""What is written for people and their programs: pages, graphs, traces, results."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from minigraph.errors import GraphError, reason
from minigraph.platform import regular_file


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text in UTF-8: a file appears whole or not at all, a pipe or a device just gets it.

    Raises GraphError if it cannot be written.
    """
    try:
        data = text.encode()
        if _streams(path):
            Path(path).write_bytes(data)
        else:
            regular_file.replace(path, data)
    except (OSError, ValueError) as error:
        raise GraphError(f"{path} cannot be written: {reason(error)}") from error


def _streams(path: str | os.PathLike[str]) -> bool:
    """Return whether a path leads to a pipe or a device, such as the standard output."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))

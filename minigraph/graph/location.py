"""Where in the user's code, and in which layer, a node was made."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Location(NamedTuple):
    """Where the user made a node: file and line, and the path of the layer that was called."""

    file: str
    line: int
    layer: str = ""

    def __str__(self) -> str:
        layer = f"in layer {self.layer}, " if self.layer else ""
        return f"{layer}at {self.file}:{self.line}"


class Scope(threading.local):
    source: Location | None = None  # of new nodes, if they are not the user's: gradients, passes
    turn: int | None = None  # of new nodes, while a pass replaces another node by them
    layers: tuple[str, ...] = ()


scope = Scope()
_PACKAGE = str(Path(__file__).parents[1])


@functools.cache
def _is_ours(file: str) -> bool:
    return file.startswith((_PACKAGE, "<"))


def here() -> Location:
    """Return the place in the user's code that is being executed."""
    if scope.source is not None:
        return scope.source
    frame = sys._getframe(1)
    while _is_ours(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno, ".".join(scope.layers))


@contextlib.contextmanager
def source(place: Location) -> Iterator[None]:
    """Let nodes made inside have the source `place`: a gradient has that of its op."""
    old, scope.source = scope.source, place
    try:
        yield
    finally:
        scope.source = old


@contextlib.contextmanager
def layer(name: str) -> Iterator[None]:
    """Append `name` to the layer path of what is made inside; an empty name adds nothing."""
    old = scope.layers
    scope.layers = (*old, name) if name else old
    try:
        yield
    finally:
        scope.layers = old

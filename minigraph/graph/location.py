"""Where in the user's code, and in which layer, a node was made."""

from __future__ import annotations

import functools
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from minigraph.errors import is_ours, users_frame
from minigraph.platform.messages import shell


class Location(NamedTuple):
    """Where the user made a node: file and line, and the path of the layer that was called.

    backward  whether it is part of the gradient of what was made there
    """

    file: str
    line: int
    layer: str = ""
    backward: bool = False

    def __str__(self) -> str:
        layer = f"in layer {self.layer}, " if self.layer else ""
        return f"{layer}at {self.file}:{self.line}"

    @property
    def brief(self) -> str:
        """What tables call it: the layer; where there is none, the line without its folder."""
        return self.layer or f"{Path(self.file).name}:{self.line}"


class Scope(threading.local):
    source: Location | None = None  # of new nodes, if they are not the user's: gradients, passes
    order: int | None = None  # of new nodes, while a pass replaces another node by them
    layers: tuple[str, ...] = ()
    called: bool = False  # inside a call of a module


scope = Scope()


def here() -> Location:
    """Return the place in the user's code that is being executed."""
    if scope.source is not None:
        return scope.source
    frame = users_frame()
    file = frame.f_code.co_filename
    name = _cell(file) if "IPython" in sys.modules else _text(file)
    return Location(name, frame.f_lineno, ".".join(scope.layers))


def _cell(file: str) -> str:
    """Return what IPython calls the cell in a file, "In [3]"; of another file, its path."""
    names = getattr(getattr(shell(), "compile", None), "format_code_name", None)
    name = names and names(file)
    return name[1].replace("[", " [") if name else _text(file)


@functools.cache
def _text(file: str) -> str:
    """Return a path as text that can be written: it may have bytes of another encoding."""
    return file.encode(errors="surrogateescape").decode(errors="replace")


def is_recursive_call() -> bool:
    """Return whether the caller runs inside a call of its own code, with only ours in between."""
    caller = sys._getframe(1)
    frame = caller.f_back
    while frame is not None and is_ours(frame):
        if frame.f_code is caller.f_code:
            return True
        frame = frame.f_back
    return False


class Within:
    """A context in which `scope` has other values, and so have the nodes made inside."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def __enter__(self) -> None:
        self.before = {name: getattr(scope, name) for name in self.values}
        vars(scope).update(self.values)

    def __exit__(self, *error: object) -> None:
        vars(scope).update(self.before)


def gradient_of(place: Location) -> Within:
    """Let nodes made inside have the source `place`: they are the gradient of what it made."""
    return Within(source=place._replace(backward=True))


def layer(name: str) -> Within:
    """Append `name` to the layer path of nodes made inside; an empty name adds nothing."""
    return Within(layers=(*scope.layers, name) if name else scope.layers, called=True)

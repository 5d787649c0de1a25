"""Source locations: the user's line and the layer that made a node."""

from __future__ import annotations

import functools
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from minigraph.errors import is_internal, users_frame
from minigraph.platform.messages import shell


class Location(NamedTuple):
    """The user's line that made a node, and the path of the layer that it was made in.

    backward  whether the node belongs to the gradient of the expression of that line
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
        """A short text for tables: the layer if there is one, else file name and line."""
        return self.layer or f"{Path(self.file).name}:{self.line}"


class Scope(threading.local):
    """Attributes of the nodes that a thread makes: see `Within`."""

    source: Location | None = None  # set in gradients and passes, where no user code runs
    order: int | None = None  # set while a pass replaces a node
    layers: tuple[str, ...] = ()  # path of the module that is being called
    called: bool = False  # whether a module is being called


scope = Scope()


def here() -> Location:
    """Return the location of the user's code that is running."""
    if scope.source is not None:
        return scope.source
    frame = users_frame()
    file = frame.f_code.co_filename
    name = _cell(file) if "IPython" in sys.modules else _text(file)
    return Location(name, frame.f_lineno, ".".join(scope.layers))


def _cell(file: str) -> str:
    """Return IPython's name of the cell in a file, such as "In [3]"; the path of any other file."""
    format_code_name = getattr(getattr(shell(), "compile", None), "format_code_name", None)
    name = format_code_name and format_code_name(file)
    return name[1].replace("[", " [") if name else _text(file)


@functools.cache
def _text(file: str) -> str:
    """Return a path as valid text; bytes that are not UTF-8 are replaced."""
    return file.encode(errors="surrogateescape").decode(errors="replace")


def is_recursive_call() -> bool:
    """Return whether the caller is called by its own code, with only minigraph's frames between."""
    caller = sys._getframe(1)
    frame = caller.f_back
    while frame is not None and is_internal(frame):
        if frame.f_code is caller.f_code:
            return True
        frame = frame.f_back
    return False


class Within:
    """A context that sets attributes of `scope`, and so of the nodes made inside."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def __enter__(self) -> None:
        self.before = {name: getattr(scope, name) for name in self.values}
        vars(scope).update(self.values)

    def __exit__(self, *error: object) -> None:
        vars(scope).update(self.before)


def gradient_of(location: Location) -> Within:
    """Mark nodes made inside as the gradient of the expression made at `location`."""
    return Within(source=location._replace(backward=True))


def layer(name: str) -> Within:
    """Append `name`, if it is not empty, to the layer path of nodes made inside."""
    return Within(layers=(*scope.layers, name) if name else scope.layers, called=True)

"""The error classes.  Every error a user can cause is a `GraphError`, hence a `ValueError`.

A message is one line: what was asked, what was found, where, and what would work.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Sequence
from types import FrameType


class GraphError(ValueError):
    """A graph, a call or a file that cannot be what was asked for."""


class ShapeError(GraphError):
    """Shapes, axes or sizes that do not fit."""


class DTypeError(GraphError):
    """Element types that do not fit."""


class OptionError(GraphError):
    """An option that does not exist, or a value that it does not take."""


class CompileError(GraphError):
    """A graph that could not be turned into a function, or that an optimisation changed."""


class CacheError(GraphError):
    """A cache that was refused, or one that lacks what `autotune="frozen"` asked for."""


class DeviceError(GraphError):
    """A device that does not exist, is not supported or has failed."""


class NoGradient(GraphError):
    """Raised when a gradient is asked of an op that has none."""


class MinigraphWarning(UserWarning):
    """Something works, but worse than it could; the text says what would help."""


def located(error: GraphError, name: str, operands: Sequence[object], place: object) -> GraphError:
    """Return `error` with the op's name, its operands and the user's line in the message."""
    if getattr(error, "located", False):
        return error
    given = f" (operands {', '.join(map(str, operands))})" if operands else ""
    new = type(error)(f"{name}: {error}{given} {place}")
    new.located = True  # type: ignore[attr-defined]
    return new


def reason(error: BaseException) -> str:
    """Return why something failed: what the system says, without path and number, if it was it."""
    return getattr(error, "strerror", None) or str(error)


_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Warn with `MinigraphWarning` at the user's line, once a process for each message."""
    if message not in _warned:
        _warned.add(message)
        frame = users_frame()
        module = frame.f_globals.get("__name__")
        place = frame.f_code.co_filename, frame.f_lineno, module
        warnings.warn_explicit(message, MinigraphWarning, *place)


def users_frame() -> FrameType:
    """Return the frame of the user's code that is being executed."""
    frame = sys._getframe(1)
    while is_ours(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return frame


_PACKAGE = os.path.join(os.path.dirname(__file__), "")


@functools.cache
def is_ours(file: str) -> bool:
    """Return whether code of a file is not the user's: the package's, or what Python has made."""
    return file.startswith((_PACKAGE, "<"))

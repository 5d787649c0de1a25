"""The error classes.  Every error a user can cause is a `GraphError`, hence a `ValueError`.

A message is one line: what was asked, what was found, where, and what would work.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import warnings
from collections.abc import Sequence
from types import FrameType

WORD, MESSAGE = 200, 2000  # characters: of a word and of a message, which may hold users' values


class GraphError(ValueError):
    """A graph, a call or a file that cannot be what was asked for."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(bounded(x) if isinstance(x, str) else x for x in args))


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


class DeviceLost(DeviceError):
    """A device that this process can use no longer: each later call fails with the same error."""


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


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra: for a clone, where this is one."""
    clone = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.isfile(os.path.join(clone, "pyproject.toml")):
        return f"pip install -e '{clone}[{extra}]'"
    return f"pip install 'minigraph[{extra}]'"


def bounded(message: str) -> str:
    """Return a message without the middle of its long words, and of itself, if it is long."""
    if len(message) > WORD:
        message = " ".join(_cut(word, WORD) for word in message.split(" "))
    return _cut(message, MESSAGE)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most * 2 // 3 - 1]}…{text[-most // 3 :]}"


def reason(error: BaseException) -> str:
    """Return why something failed: what the system says, without path and number, if it was it."""
    return getattr(error, "strerror", None) or str(error)


_warned: set[str] = set()


def warn_once(message: str, cause: str = "") -> None:
    """Warn with `MinigraphWarning` at the user's line, once a process for each cause.

    cause  identifies the warning; by default the message does
    """
    if (cause or message) not in _warned:
        _warned.add(cause or message)
        frame = users_frame()
        module = frame.f_globals.get("__name__")
        place = frame.f_code.co_filename, frame.f_lineno, module
        warnings.warn_explicit(bounded(message), MinigraphWarning, *place)


def users_frame() -> FrameType:
    """Return the frame of the user's line: the innermost of code that is no library's.

    Of code without a file (`exec`, a prompt) that counts whose source Python knows, as it does a
    notebook's; other code is named by who runs it, and by its own lines only if nobody has a file.
    Where all are libraries' (`python -m`), it is the innermost that is not the package's.
    """
    nearest = typed = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        made = file.startswith("<")
        whose = _owner(frame.f_globals.get("__file__") or file if made else file)
        if whose == USER:
            if not made or linecache.getline(file, frame.f_lineno):
                return frame
            typed = typed or frame
        elif whose == LIBRARY:
            nearest = nearest or frame
        last, frame = frame, frame.f_back
    return typed or nearest or last


OURS, LIBRARY, USER = range(3)
_PACKAGE = os.path.join(os.path.dirname(__file__), "")
_PYTHON = os.path.join(os.path.dirname(os.__file__), "")


def is_ours(frame: FrameType) -> bool:
    """Return whether the code of a frame is the package's, or was made for it (a dataclass's)."""
    file = frame.f_code.co_filename
    home = frame.f_globals.get("__file__") if file.startswith("<") else ""
    return _owner(home or file) == OURS


@functools.cache
def _owner(file: str) -> int:
    if file.startswith(_PACKAGE):
        return OURS
    folders = file.split(os.sep)
    installed = "site-packages" in folders or "dist-packages" in folders
    return LIBRARY if installed or file.startswith((_PYTHON, "<frozen ")) else USER

"""The error classes.  Every error a user can cause is a `GraphError`, hence a `ValueError`.

A message is one line: the request, the problem, the place, and a remedy.  Errors for names of
PyTorch that do not exist here name the replacement.
"""

from __future__ import annotations

import difflib
import functools
import linecache
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

import msgspec

MAX_WORD, MAX_MESSAGE = 200, 2000  # characters; messages may hold users' values


class GraphError(ValueError):
    """An invalid graph, call or file."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(truncate_message(x) if isinstance(x, str) else x for x in args))


class ShapeError(GraphError):
    """Shapes, axes or sizes that do not fit."""


class DTypeError(GraphError):
    """Element types that do not fit."""


class OptionError(GraphError):
    """An option that does not exist, or a value that it does not take."""


class CompileError(GraphError):
    """A graph that could not be turned into a function, or that an optimisation changed."""


class CacheError(GraphError):
    """A refused cache, or one that lacks the measurements for `autotune="frozen"`."""


class DeviceError(GraphError):
    """A device that does not exist, is not supported or has failed."""


class DeviceLost(DeviceError):
    """A device that this process can use no longer: each later call fails with the same error."""


class NoGradient(GraphError):
    """Raised when a gradient is asked of an op that has none."""


class MinigraphWarning(UserWarning):
    """Something works, but less well than it could; the text names a remedy."""


def located(error: GraphError, name: str, operands: Sequence[object], place: object) -> GraphError:
    """Return `error` with the op's name, its operands and the user's line in the message."""
    if getattr(error, "located", False):
        return error
    given = f" (operands {', '.join(map(str, operands))})" if operands else ""
    new = type(error)(f"{name}: {error}{given} {place}")
    vars(new).update(vars(error))
    new.located = True  # type: ignore[attr-defined]
    return new


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra, for a clone or a package."""
    clone = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.isfile(os.path.join(clone, "pyproject.toml")):
        return f"pip install -e '{clone}[{extra}]'"
    return f"pip install 'minigraph[{extra}]'"


def truncate_message(message: str) -> str:
    """Return a message without the middle of its long words, and of itself, if it is long."""
    if len(message) > MAX_WORD:
        message = " ".join(_without_middle(word, MAX_WORD) for word in message.split(" "))
    return _without_middle(message, MAX_MESSAGE)


def _without_middle(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most * 2 // 3 - 1]}…{text[-most // 3 :]}"


def reason(error: BaseException) -> str:
    """Return the reason of an error: for one of the system, its text without path and number."""
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
        warnings.warn_explicit(truncate_message(message), MinigraphWarning, *place)


def users_frame() -> FrameType:
    """Return the frame of the user's line: the innermost frame outside of libraries.

    Code without a file (`exec`, a prompt) counts if Python knows its source, as for a notebook;
    other such code only counts if no frame has a file.  If all frames are of libraries (`python
    -m`), it is the innermost outside of the package.
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


INTERNAL, LIBRARY, USER = range(3)
_PACKAGE = os.path.join(os.path.dirname(__file__), "")
_PYTHON = os.path.join(os.path.dirname(os.__file__), "")


def is_internal(frame: FrameType) -> bool:
    """Return whether the code of a frame is the package's, or was made for it (a dataclass's)."""
    file = frame.f_code.co_filename
    home = frame.f_globals.get("__file__") if file.startswith("<") else ""
    return _owner(home or file) == INTERNAL


@functools.cache
def _owner(file: str) -> int:
    if file.startswith(_PACKAGE):
        return INTERNAL
    folders = file.split(os.sep)
    installed = "site-packages" in folders or "dist-packages" in folders
    return LIBRARY if installed or file.startswith((_PYTHON, "<frozen ")) else USER


# ---------------------------------------------------------------- names of PyTorch


@functools.cache
def hints(part: str) -> Mapping[str, str]:
    """Return the replacements for names of PyTorch, by name, from a table of `torch_hints.toml`."""
    tables = msgspec.toml.decode(Path(__file__).with_name("torch_hints.toml").read_bytes())
    rows = {**tables["ops"], **tables["package"]} if part == "package" else tables[part]
    return {name: answer for names, answer in rows.items() for name in names.split()}


def module_getattr(module: str, part: str, *others: ModuleType) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module, which raises the error for a name that it has not.

    others  modules that may have the name
    """

    def raise_missing(name: str) -> NoReturn:
        other = next((each for each in others if name in each.__all__), None)
        answer = hints(part).get(name, "") if not name.startswith("_") else ""
        if other is not None and not answer:
            answer = f"it is {other.__name__.rpartition('.')[2]}.{name}"
        raise _attribute_error(module, name, answer, sys.modules[module])

    return raise_missing


def install_hints(module: str, part: str) -> None:
    """Let a module show the names of its `__all__` alone, and raise the errors for others."""
    own: Any = sys.modules[module]
    own.__dir__ = lambda: own.__all__
    own.__getattr__ = module_getattr(module, part)


def expression_attribute_error(
    name: str, expression: object, functions: Iterable[str]
) -> AttributeError:
    """Return the error for an attribute that an expression has not.

    functions  the names of `minigraph.ops`
    """
    answer = ""
    if not name.startswith("_"):  # else a protocol, which libraries look for often
        answers = {each: f"it is the function ops.{each}" for each in functions}
        answers |= {**hints("ops"), **hints("expressions")}
        plain = name.removesuffix("_")
        answer = answers.get(name, "")
        if plain != name and not answer:
            new = answers.get(plain, "`updates` of `compile` gives parameters new values")
            if hasattr(type(expression), plain):
                new = f"x.{plain}(...) gives a new one"
            answer = f"expressions never change; {new}"
    return _attribute_error("an expression", name, answer, expression)


def attribute_error(what: str, name: str, part: str, owner: object) -> AttributeError:
    """Return the error for an attribute that `what` lacks, with its replacement."""
    answer = "" if name.startswith("_") else hints(part).get(name, "")
    return _attribute_error(what, name, answer, owner)


def _attribute_error(what: str, name: str, answer: str, owner: object) -> AttributeError:
    text = f"{what} has no {name}: {answer}"
    if not answer:
        text = f"{what} has no attribute {name!r:.99}"
        if not name.startswith("_"):
            names = getattr(owner, "__all__", None) or object.__dir__(owner)
            public = [each for each in names if not each.startswith("_")]
            nearest = difflib.get_close_matches(name, public, n=1, cutoff=0.75)
            text += f"; the nearest is {nearest[0]}" if nearest else ""
    return AttributeError(text, name=name, obj=owner)

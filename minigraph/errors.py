"""The error classes.  Every error a user can cause is a `GraphError`, hence a `ValueError`.

A message is one line: the request, the problem, the place, and a remedy.  Errors for names that
only PyTorch has name the replacement.
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


def located(error: GraphError, name: str, operands: Sequence[object], source: object) -> GraphError:
    """Return `error` with the op's name, its operands and the user's line in the message."""
    if getattr(error, "located", False):
        return error
    operand_list = f" (operands {', '.join(map(str, operands))})" if operands else ""
    new = type(error)(f"{name}: {error}{operand_list} {source}")
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
    """Return a message with the middle of long words removed, and then its own if it is long."""
    if len(message) > MAX_WORD:
        message = " ".join(_without_middle(word, MAX_WORD) for word in message.split(" "))
    return _without_middle(message, MAX_MESSAGE)


def _without_middle(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit * 2 // 3 - 1]}…{text[-limit // 3 :]}"


def reason(error: BaseException) -> str:
    """Return the text of an error: of an OSError without its path and number."""
    return getattr(error, "strerror", None) or str(error)


_warned: set[str] = set()


def warn_once(message: str, cause: str = "") -> None:
    """Warn with `MinigraphWarning` at the user's line, once in a process for each cause.

    cause  identifies the warning; by default the message
    """
    if (cause or message) not in _warned:
        _warned.add(cause or message)
        frame = users_frame()
        location = frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__")
        warnings.warn_explicit(truncate_message(message), MinigraphWarning, *location)


def users_frame() -> FrameType:
    """Return the frame of the user's line: the innermost frame outside of libraries.

    Code without a file (`exec`, a prompt) counts if Python knows its source, as for a notebook;
    without a source it counts only if no user's frame has a file.  If all frames are of libraries
    (`python -m`), return the innermost outside of the package.
    """
    library_frame = sourceless_frame = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        has_file = not file.startswith("<")
        owner = _owner(file if has_file else frame.f_globals.get("__file__") or file)
        if owner == USER:
            if has_file or linecache.getline(file, frame.f_lineno):
                return frame
            sourceless_frame = sourceless_frame or frame
        elif owner == LIBRARY:
            library_frame = library_frame or frame
        outermost, frame = frame, frame.f_back
    return sourceless_frame or library_frame or outermost


INTERNAL, LIBRARY, USER = range(3)
_PACKAGE = os.path.join(os.path.dirname(__file__), "")
_PYTHON = os.path.join(os.path.dirname(os.__file__), "")


def is_internal(frame: FrameType) -> bool:
    """Return whether the code of a frame is the package's, or generated for it (a dataclass's)."""
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
    return {name: hint for names, hint in rows.items() for name in names.split()}


def module_getattr(module: str, part: str, *alternatives: ModuleType) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module, which raises the error for a name that it lacks.

    alternatives  modules that may have the name
    """

    def raise_attribute_error(name: str) -> NoReturn:
        hint = hints(part).get(name, "") if not name.startswith("_") else ""
        owner = next((each for each in alternatives if name in each.__all__), None)
        if owner is not None and not hint:
            hint = f"it is {owner.__name__.rpartition('.')[2]}.{name}"
        raise _attribute_error(module, name, hint, sys.modules[module])

    return raise_attribute_error


def install_hints(module: str, part: str) -> None:
    """Let `dir` list the names of a module's `__all__` alone, and other names raise the errors."""
    target: Any = sys.modules[module]
    target.__dir__ = lambda: target.__all__
    target.__getattr__ = module_getattr(module, part)


def expression_attribute_error(
    name: str, expression: object, functions: Iterable[str]
) -> AttributeError:
    """Return the error for an attribute that an expression lacks.

    functions  the names of `minigraph.ops`
    """
    hint = ""
    if not name.startswith("_"):  # else a protocol, which libraries look for often
        all_hints = {each: f"it is the function ops.{each}" for each in functions}
        all_hints |= {**hints("ops"), **hints("expressions")}
        plain = name.removesuffix("_")
        hint = all_hints.get(name, "")
        if plain != name and not hint:
            replacement = all_hints.get(plain, "`updates` of `compile` gives parameters new values")
            if hasattr(type(expression), plain):
                replacement = f"x.{plain}(...) gives a new one"
            hint = f"expressions never change; {replacement}"
    return _attribute_error("an expression", name, hint, expression)


def attribute_error(subject: str, name: str, part: str, owner: object) -> AttributeError:
    """Return the error, with a replacement, for an attribute that `owner`, `subject`, lacks."""
    hint = "" if name.startswith("_") else hints(part).get(name, "")
    return _attribute_error(subject, name, hint, owner)


def _attribute_error(subject: str, name: str, hint: str, owner: object) -> AttributeError:
    text = f"{subject} has no {name}: {hint}"
    if not hint:
        text = f"{subject} has no attribute {name!r:.99}"
        if not name.startswith("_"):
            names = getattr(owner, "__all__", None) or object.__dir__(owner)
            public = [each for each in names if not each.startswith("_")]
            nearest = difflib.get_close_matches(name, public, n=1, cutoff=0.75)
            text += f"; the nearest is {nearest[0]}" if nearest else ""
    return AttributeError(text, name=name, obj=owner)

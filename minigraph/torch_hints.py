"""Errors for names of PyTorch that do not exist here: they say in one line what serves instead.

`torch_hints.toml` has the answers, for each part of the package.
"""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import msgspec


@functools.cache
def hints(part: str) -> Mapping[str, str]:
    """Return the answers of a part, a table of the file, by name."""
    tables = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())
    rows = {**tables["ops"], **tables["package"]} if part == "package" else tables[part]
    return {name: answer for names, answer in rows.items() for name in names.split()}


def of_module(module: str, part: str, *others: ModuleType) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module, which raises the error for a name that it has not.

    others  modules that may have the name
    """

    def raise_missing(name: str) -> NoReturn:
        other = next((each for each in others if name in each.__all__), None)
        answer = hints(part).get(name, "") if not name.startswith("_") else ""
        if other is not None and not answer:
            answer = f"it is {other.__name__.rpartition('.')[2]}.{name}"
        raise _error(module, name, answer, sys.modules[module])

    return raise_missing


def install(module: str, part: str) -> None:
    """Let a module show the names of its `__all__` alone, and raise the errors for others."""
    own: Any = sys.modules[module]
    own.__dir__ = lambda: own.__all__
    own.__getattr__ = of_module(module, part)


def of_expression(name: str, expression: object, functions: Iterable[str]) -> AttributeError:
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
    return _error("an expression", name, answer, expression)


def missing(what: str, name: str, part: str, owner: object) -> AttributeError:
    """Return the error for an attribute that `what` has not, with what serves instead."""
    answer = "" if name.startswith("_") else hints(part).get(name, "")
    return _error(what, name, answer, owner)


def _error(what: str, name: str, answer: str, owner: object) -> AttributeError:
    text = f"{what} has no {name}: {answer}"
    if not answer:
        text = f"{what} has no attribute {name!r:.99}"
        if not name.startswith("_"):
            names = getattr(owner, "__all__", None) or object.__dir__(owner)
            public = [each for each in names if not each.startswith("_")]
            nearest = difflib.get_close_matches(name, public, n=1, cutoff=0.75)
            text += f"; the nearest is {nearest[0]}" if nearest else ""
    return AttributeError(text, name=name, obj=owner)

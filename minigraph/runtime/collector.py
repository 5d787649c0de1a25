"""Collecting the functions that a program compiles, which `minigraph view` shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from minigraph.runtime.calls import CompiledFunction

F = TypeVar("F", bound=CompiledFunction)
_collections: list[list[CompiledFunction]] = []


@contextmanager
def collecting() -> Iterator[list[CompiledFunction]]:
    """Give a list, to which functions are appended that are compiled inside."""
    functions: list[CompiledFunction] = []
    _collections.append(functions)
    try:
        yield functions
    finally:
        _collections.remove(functions)


def collect(function: F) -> F:
    """Return a function that was compiled, after adding it to all lists that collect."""
    for functions in _collections:
        functions.append(function)
    return function

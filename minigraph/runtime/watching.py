"""Telling whoever looks which functions are compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from minigraph.runtime.calls import CompiledFunction

Made = TypeVar("Made", bound=CompiledFunction)
_watching: list[list[CompiledFunction]] = []


@contextmanager
def watched(made: list[CompiledFunction]) -> Iterator[None]:
    """Append the functions that are compiled inside to a list."""
    _watching.append(made)
    try:
        yield
    finally:
        _watching.remove(made)


def told(function: Made) -> Made:
    """Return a function that was compiled, once all who watch know it."""
    for made in _watching:
        made.append(function)
    return function

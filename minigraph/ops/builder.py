"""The decorator of the functions that users build expressions with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from minigraph.errors import GraphError, located
from minigraph.graph import Node, here

P = ParamSpec("P")
R = TypeVar("R")


def builder(fn: Callable[P, R]) -> Callable[P, R]:
    """Make errors of a function that builds nodes say what was being built, of what, and where."""

    @functools.wraps(fn)
    def build(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fn(*args, **kwargs)
        except GraphError as error:
            operands = _nodes((*args, *kwargs.values()))
            raise located(error, fn.__name__, operands, here()) from None

    return build


def _nodes(args: Any) -> list[Node]:
    found: list[Node] = []
    for arg in args:
        if isinstance(arg, Node):
            found.append(arg)
        elif isinstance(arg, list | tuple):
            found.extend(x for x in arg if isinstance(x, Node))
    return found

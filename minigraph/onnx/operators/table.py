"""The table of supported ONNX operators: a row is a small function for each.

A row takes an operator's inputs by position (expressions, or None for an omitted one) and its
attributes by name.  It returns a result, or a list of them.  An operator without a row is computed
by ONNX's definition as a function, if it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minigraph import ops
from minigraph.graph import Node

Row = Callable[..., Any]
ROWS: dict[str, Row] = {}  # by an operator's name, with its domain if that is not ONNX's own
COUNTING: set[str] = set()  # operators whose rows take the number of `outputs` as an argument
MICROSOFT = "com.microsoft"


def row(*names: str, counting: bool = False) -> Callable[[Row], Row]:
    """Return a decorator that enters a function as the row of operators."""

    def enter(function: Row) -> Row:
        for name in names:
            ROWS[name] = function
            if counting:
                COUNTING.add(name)
        return function

    return enter


def rows(table: Mapping[str, Row]) -> None:
    """Enter functions, each as the row of the operators that its key names."""
    for names, function in table.items():
        row(*names.split())(function)


def along(x: Node, ndim: int, axis: int) -> Node:
    """Return a vector as an array with `ndim` axes, along one of them."""
    return ops.reshape(x, (*(1,) * (axis % ndim), -1, *(1,) * (ndim - 1 - axis % ndim)))

"""Checks of the numbers that data sets and loaders are made with."""

from __future__ import annotations

import operator
from typing import Any

from minigraph.errors import GraphError


def integer(what: str, value: Any, least: int) -> int:
    """Return `value` as an int; a GraphError that names `what` if it is none or below `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise GraphError(f"{what} is {value!r}; it takes an integer >= {least}")
    return number

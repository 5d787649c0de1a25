"""The arrays that a call is given: in the order of the inputs, and as programs take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import Array, Node, as_array, here, same_kind
from minigraph.program import Backend


def in_order(
    inputs: Sequence[Node], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Sequence[Any]:
    """Return the value for each input; GraphError if one is missing, unknown or given twice."""
    names = [node.name for node in inputs]
    if len(args) > len(names):
        raise GraphError(
            f"the function takes {len(names)} inputs ({', '.join(names)}), got {len(args)} {here()}"
        )
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            known = ", ".join(names) or "none"
            raise GraphError(f"there is no input {name!r}; the inputs: {known} {here()}")
        if name in given:
            raise GraphError(f"input {name!r} is given twice {here()}")
        given[name] = value
    missing = [name for name in names if name not in given]
    if missing:
        text = f"no value is given for input {', '.join(missing)} {here()}"
        raise GraphError(text + _in_one(args))
    return [given[name] for name in names]


def _in_one(args: Sequence[Any]) -> str:
    """Return what to do if the values of several inputs are given as one, else ""."""
    match args:
        case [Mapping()]:
            return "; of a dict of values, function(**values)"
        case [list() | tuple()]:
            return "; of a list of values, function(*values)"
    return ""


def channels_last(taken: Sequence[Any], given: Sequence[int]) -> str:
    """Return what to do if `given` are images whose channels are the last axis, else ""."""
    if len(taken) != 4 or len(given) != 4:
        return ""
    n, height, width, channels = given
    turned = zip(taken, (n, channels, height, width), strict=True)
    if any(isinstance(size, int) and size != other for size, other in turned):
        return ""
    return "images have channels before height and width: images.transpose(0, 3, 1, 2)"


def as_input(node: Node, value: Any, backend: Backend) -> Array:
    """Return `value` as a contiguous array of the input's dtype; errors say what it takes.

    The array is in the memory of the device if the value is.
    """
    here_already = backend.array(value)
    try:
        given = as_array(value) if here_already is None else here_already
        array = same_kind(given, node.dtype, backend.cast)
    except DTypeError as error:
        text = f"input {node.name} takes {node.spec}: {error} {here()}{_in_one([value])}"
        raise DTypeError(text) from None
    if array.shape != node.shape:
        advice = channels_last(node.shape, array.shape) or (
            f"a size that differs between calls is None, as in mg.input({node.name!r}, (None, ...))"
        )
        raise ShapeError(
            f"input {node.name} takes shape {node.shape}, got {array.shape} {here()}; {advice}"
        )
    if here_already is not None:
        return array if array.flags.c_contiguous else array.copy(order="C")
    return array if array.flags.carray else np.require(array, requirements=["C", "A"])

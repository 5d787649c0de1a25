"""Divisions that round toward zero, as those of C; the ops round down, as Python does."""

from __future__ import annotations

from typing import Any

from minigraph import ops
from minigraph.graph import FLOATS, Node


def quotient_toward_zero(x: Node, y: Any) -> Node:
    """Return x / y without its fraction, of floats or of integers."""
    if x.dtype in FLOATS:
        return ops.trunc(x / y)
    if x.dtype.kind == "u":
        return ops.floor_divide(x, y)
    return ops.floor_divide(ops.abs(x), ops.abs(y)) * ops.sign(x) * ops.sign(y)


def remainder_toward_zero(x: Node, y: Any) -> Node:
    """Return what is left of x, with its sign, where y is taken away as often as it fits."""
    rest = ops.remainder(ops.abs(x), ops.abs(y))
    if x.dtype in FLOATS:
        return ops.copysign(rest, x)
    return rest if x.dtype.kind == "u" else rest * ops.sign(x)

"""What is known of a value before it is computed, for the conditions of rules."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from minigraph.graph import BOOL, Constant, DType, Graph, Node, Op
from minigraph.ops.elementwise import kind

DEPTH = 4  # how many nodes up a question about a node looks, which keeps it cheap


def is_float(node: Node) -> bool:
    return kind(node.dtype) == "f"


def filled_with(node: Node) -> int | float | None:
    """Return the number that all elements of a constant, or of a view of one, are; else None."""
    for _ in range(DEPTH):
        if not node.op.is_view:
            break
        node = node.inputs[0]
    if not isinstance(node.op, Constant) or not node.size:
        return None
    value = node.op.value
    if value.size > 1:
        bits = np.ascontiguousarray(value).reshape(-1).view(f"u{value.itemsize}")
        if bits[0] != bits[-1] or not (bits == bits[0]).all():  # of bits: 0.0 is not -0.0
            return None
    return float(value.flat[0]) if is_float(node) else int(value.flat[0])


def is_lossless(source: DType, target: DType) -> bool:
    """Whether a cast keeps every value of `source`, so that a cast back undoes it."""
    if source in (target, BOOL):
        return True
    if kind(source) == "f":
        if kind(target) != "f":
            return False
        x, y = _finfo(source), _finfo(target)
        return bool(x.nmant <= y.nmant and x.maxexp <= y.maxexp)
    if target == BOOL:
        return False
    given = np.iinfo(source)
    if kind(target) == "f":
        return bool(given.bits <= _finfo(target).nmant + 1)
    held = np.iinfo(target)
    return bool(held.min <= given.min and given.max <= held.max)


def is_normal(number: float, dtype: DType) -> bool:
    """Whether a number is neither 0 nor NaN nor too small or too large for a float dtype."""
    info = _finfo(dtype)
    return bool(float(info.tiny) <= abs(number) <= float(info.max))


def _finfo(dtype: DType) -> Any:
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def has(graph: Graph, *kinds: type[Op]) -> bool:
    """Whether the graph has an op of one of these classes."""
    return any(issubclass(found, kinds) for found in graph.kinds)


def read_once(graph: Graph) -> set[Node]:
    """Return the nodes that are read at one place and are no outputs."""
    alone = {node for node, users in graph.users().items() if len(users) == 1}
    return alone.difference(graph.outputs)

"""Constant folding while a model is read: constants, and arithmetic with sizes.

ONNX computes shapes with its usual operators.  The ops' NumPy meanings compute expressions of
constants and sizes immediately; arrays of objects hold symbolic sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from minigraph.graph import (
    BOOL,
    FLOATS,
    Array,
    Constant,
    DType,
    FromSizes,
    Input,
    Node,
    Parameter,
    SymbolicSize,
    UndecidedSize,
    constant,
    from_sizes,
    is_symbolic,
    toposort,
)

MAX_FOLDED_ELEMENTS = 1 << 16  # of values that are folded
MAX_VALUE_ELEMENTS = 1 << 24  # of values that a row needs


class NeedsValue(UndecidedSize):
    """Reading a model needs the values of the inputs `names`."""

    names: Sequence[str] = ()


class Tensors(tuple[Node, ...]):
    """The tensors of a sequence, which is a value of ONNX without an expression."""


def constant_value(node: Node) -> Array | None:
    """Return the value of a constant, an array of objects for sizes; None for other nodes."""
    if isinstance(node.op, Constant):
        return node.op.value
    if isinstance(node.op, FromSizes) and node.op.function is _elements:
        return _objects(node.op.sizes, node.op.shape)
    return None


def sizes_in(node: Node) -> Array | None:
    """Return the value of an expression if it contains a symbolic size, else None."""
    value = constant_value(node)
    return value if value is not None and value.dtype == object else None


def as_expression(array: Array, dtype: DType) -> Node:
    """Return a value as an expression of a dtype; `array` may hold symbolic sizes."""
    if array.dtype != object:
        return constant(array.astype(dtype, copy=False))
    numbers = tuple(n if isinstance(n, SymbolicSize) else int(n) for n in array.flat)
    return from_sizes("Shape", _elements, numbers, array.shape, dtype)


def of_sizes(sizes: Iterable[int]) -> Node:
    """Return sizes as an expression: a vector of int64."""
    sizes = tuple(sizes)
    return as_expression(_objects(sizes, (len(sizes),)), np.dtype(np.int64))


def value_of(node: Node) -> Array:
    """Return the value of an expression that depends on no input; NeedsValue if it does."""
    value = constant_value(node)
    if value is not None:
        return value
    names = [x.name for x in toposort([node]) if isinstance(x.op, Input)]
    if names:
        error = NeedsValue(
            f"its result has a shape that depends on the value of the input {', '.join(names)}; "
            "onnx.load takes it as values={...}, and onnx.function reads it from the first call"
        )
        error.names = names
        raise error
    if not _fits(node, MAX_VALUE_ELEMENTS):
        raise UndecidedSize("it depends on the values of a large expression, or of symbolic sizes")
    return _computed(node)


def integers(node: Node | None) -> list[Any] | None:
    """Return the elements of a vector or a number as a list; sizes may be symbolic."""
    return None if node is None else [*value_of(node).astype(object).flat]


def integer(node: Node | None, default: int | None = None) -> Any:
    """Return the only element of an expression; it may be a symbolic size."""
    if node is None:
        return default
    (number,) = value_of(node).astype(object).flat
    return number


def number(node: Node | None, default: float) -> float:
    """Return the only element of an expression as a float."""
    return default if node is None else float(value_of(node).reshape(()))


def folded(node: Node) -> Node:
    """Return a small expression of constants as a constant; others unchanged."""
    if constant_value(node) is not None or not _fits(node, MAX_FOLDED_ELEMENTS):
        return node
    try:
        return as_expression(_computed(node), node.dtype)
    except Exception:  # NumPy's with a symbolic size, or an error that a call will raise
        return node


def _fits(node: Node, limit: int) -> bool:
    sizes = [n.size for x in toposort([node]) for n in x.specs]
    return not is_symbolic(sizes) and max(sizes) <= limit


def _computed(node: Node) -> Array:
    values: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for x in toposort([node]):
            value = x.state.read() if isinstance(x, Parameter) else constant_value(x)
            if value is None:
                operands = [values[y] for y in x.inputs]
                if x.dtype == BOOL:
                    _refuse_undecided(operands)
                value = x.op.forward(*operands)
            if isinstance(value, np.generic) or (
                x.dtype in FLOATS and not isinstance(value, tuple)
            ):
                value = np.asarray(value)
            elif not isinstance(value, tuple | np.ndarray):  # NumPy would convert a size
                value = _objects([value], ())
            values[x] = value
    return values[node]


def _refuse_undecided(operands: Sequence[Array]) -> None:
    """Raise UndecidedSize if a comparison depends on the sizes of calls; `==` would not raise it.

    operands  one, which is compared with 0, or two
    """
    if any(x.dtype == object for x in operands):
        for x, y in np.broadcast(*(a.astype(object) for a in (*operands, np.zeros((), int))[:2])):
            x < y  # noqa: B015


def _objects(numbers: Iterable[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(math.prod(shape), object)
    for i, n in enumerate(numbers):
        array[i] = n
    return array.reshape(shape)


def _elements(*numbers: Any) -> Array:
    return np.array(numbers)

"""Errors for operations on numbers and arrays that expressions do not support.

An expression has no value before a call; each error names a function to use instead.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from minigraph.errors import DTypeError, GraphError, expression_attribute_error, hints
from minigraph.graph.location import here

MAX_SHOWN_NODES = 24  # at most so many nodes are shown in a notebook
SAME_NAMES = (
    *("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "matmul"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "equal", "not_equal"),
    *("less", "less_equal", "greater", "greater_equal"),
)
# NumPy's functions for binary operators, and their names in `minigraph.ops`.
OPERATORS = {
    "power": "pow",
    "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift",
    **{name: name for name in SAME_NAMES},
}


class Unsupported:
    """The base class of expressions.

    functions  the functions of `minigraph.ops`, by name
    """

    __slots__ = ()

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}

    if not TYPE_CHECKING:  # else mypy would accept any attribute

        def __getattr__(self, name: str) -> Any:
            raise expression_attribute_error(name, self, self.functions)

    def _repr_html_(self: Any) -> str:
        """Return the nodes that it depends on, operands first; of many only the nearest."""
        reached: dict[Any, None] = {self: None}
        for node in (queue := [self]):
            unvisited = [x for x in node.inputs if x not in reached]
            reached.update(dict.fromkeys(unvisited))
            queue += unvisited
        nearest = sorted(list(reached)[:MAX_SHOWN_NODES], key=lambda node: node.order)
        hidden = len(reached) - len(nearest)
        names = {node: f"%{i}" for i, node in enumerate(nearest)}
        lines = [f"{hidden} ops before these"] * bool(hidden)
        for node, name in names.items():
            operands = " ".join(names.get(x, "…") for x in node.inputs)
            lines.append(f"{name}: {' '.join((repr(node), operands)).strip()}, made {node.source}")
        return f"<pre>{html.escape(chr(10).join(lines))}</pre>"

    def __float__(self) -> float:
        raise GraphError(f"{self!r} is not a number: {hints('expressions')['item']}")

    __int__ = __complex__ = __float__

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else format(self.__float__(), spec)

    def __bool__(self) -> bool:
        raise GraphError(
            f"an expression has no truth value before it is computed ({self!r} {here()}); "
            "use ops.where, or `is` to compare expressions themselves"
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        raise GraphError(
            f"{self!r}: expressions never change {here()}; ops.where(mask, value, x) and "
            "ops.index_put(x, indices, values) give new ones"
        )

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        # Without this method NumPy would index each element of an expression.
        raise DTypeError(f"{self!r} is not an array: {hints('expressions')['item']}")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Compute operators such as `array + expression`; reject NumPy's other functions."""
        name = OPERATORS.get(ufunc.__name__)
        is_operator = method == "__call__" and len(inputs) == 2 and kwargs.keys() <= {"out"}
        if name and is_operator and not isinstance(inputs[0], Unsupported):
            return self.functions[name](*inputs)
        raise self._numpy_error(ufunc.__name__)

    def __array_function__(self, function: Any, *args: Any) -> NoReturn:
        raise self._numpy_error(function.__name__)

    def _numpy_error(self, name: str) -> GraphError:
        hint = hints("ops").get(name, "minigraph.ops")
        replacement = f"ops.{name}" if name in self.functions else hint
        return DTypeError(
            f"np.{name} computes arrays, and {self!r} has no value before a call {here()}; "
            f"functions of expressions: {replacement}"
        )

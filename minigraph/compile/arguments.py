"""What `compile` is given: kinds of arguments, inputs, outputs and new values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from minigraph.arguments import Kind, mapping
from minigraph.devices.factory import check_device
from minigraph.errors import DeviceError, DTypeError, GraphError, ShapeError
from minigraph.graph import Array, Graph, Input, Node, Parameter, as_node, can_cast, constant, here
from minigraph.ops.elementwise import as_operand


def _updates(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, list | tuple) and all(isinstance(each, Mapping) for each in value):
        raise GraphError(f"a {type(value).__name__} of mappings; {{**first, **second}} is one")
    return mapping(value)


def _inputs(value: Any) -> list[Any]:
    return [value] if isinstance(value, Node) else list(value)


def _outputs(value: Any) -> Any:
    return value if isinstance(value, Node | Mapping) else list(value)


DEVICE = Kind("the name of a device", check_device, DeviceError)
OPTIONS = Kind("a mapping of names to values", mapping)
INPUTS = Kind("a sequence of what mg.input made", _inputs)
OUTPUTS = Kind("an expression, or a sequence or dict of them", _outputs)
UPDATES = Kind("a mapping of parameters to new values (adam.minimize(loss) gives one)", _updates)


def check_inputs(inputs: Sequence[Node]) -> None:
    """Raise GraphError if one is no input or two have the same name."""
    names: dict[str, Node] = {}
    for x in inputs:
        if not isinstance(x, Node) or not isinstance(x.op, Input):
            what = repr(x) if isinstance(x, Node) else type(x).__name__
            raise GraphError(f"compile: {what} is no input; inputs are made by mg.input {here()}")
        if x.name in names:
            if names[x.name] is x:
                raise GraphError(f"compile: input {x.name!r} is listed twice {here()}")
            raise GraphError(
                f"compile: two inputs are called {x.name!r}, made {names[x.name].source} and "
                f"{x.source}, {here()}; names differ, and of a cell that was run twice one is meant"
            )
        names[x.name] = x


def flattened(outputs: Any) -> tuple[Iterable[Any], Callable[[list[Array]], Any]]:
    """Return the outputs in a row, and what makes of their values what the caller gets."""
    if isinstance(outputs, Node):
        return [outputs], operator.itemgetter(0)
    if isinstance(outputs, Mapping):
        names = list(outputs)
        if any(isinstance(name, Parameter) for name in names):
            raise GraphError(
                "compile: outputs has parameters as names, and would change none; new values of "
                f"parameters are `updates`: compile(inputs, loss, updates) {here()}"
            )
        return outputs.values(), lambda values: dict(zip(names, values, strict=True))
    return outputs, as_they_are


def frozen(graph: Graph, updates: Mapping[Parameter, Node]) -> Graph:
    """Return the graph with its parameters as they are now, as constants."""
    if updates:
        raise GraphError(
            f"compile: freeze=True makes parameters constants, so it takes no updates; there are "
            f"updates of {', '.join(p.name for p in [*updates][:3])} {here()}"
        )
    held: dict[Node, Node] = {p: constant(p.numpy()) for p in graph.parameters}
    return graph.map(lambda node, inputs: held[node] if node in held else node.replace(inputs))


def as_they_are(values: list[Array]) -> list[Array]:
    return values


def expression(value: Any) -> Node:
    """Return an output or a new value, which may be a number or an array, as an expression."""
    try:
        return as_node(value)
    except GraphError as error:
        raise type(error)(f"compile: {error} {here()}") from None


def check_descents(updates: Mapping[Parameter, Any]) -> None:
    """Raise GraphError if a part of what an optimizer gave was overwritten by another's."""
    given = {p: value.descent for p, value in updates.items() if isinstance(value, Node)}
    for first in dict.fromkeys(filter(None, given.values())):
        for p in first.parameters:
            last = given.get(p)  # type: ignore[call-overload]
            if last and last is not first and p in last.parameters:
                raise GraphError(
                    f"compile: {first.name} ({first.source}) and {last.name} ({last.source}) both "
                    f"give {p.name} a new value, and the dict keeps that of the latter; minimize "
                    f"the sum of their losses, or compile a function for each {here()}"
                )


def new_value(parameter: Parameter, value: Any) -> Node:
    """Return the expression for a parameter's new value in the parameter's dtype."""
    if not isinstance(parameter, Parameter):
        raise GraphError(f"compile: only a Parameter can be updated, not {parameter!r} {here()}")
    node = expression(value)
    what = f"compile: the update of parameter {parameter.name} ({parameter.spec}) is {node.spec}"
    if node.shape != parameter.shape:
        raise ShapeError(f"{what}, made {node.source}; the shapes have to be equal")
    if not can_cast(node.dtype, parameter.dtype):
        raise DTypeError(f"{what}, made {node.source}; that does not cast by the same_kind rule")
    try:
        return as_operand(node, parameter.dtype)
    except DTypeError as error:
        raise DTypeError(f"{what}: {error} {here()}") from None

"""What `compile` takes: kinds of arguments, and the checks that need more than one of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from minigraph.arguments import Kind, mapping
from minigraph.devices.factory import check_device
from minigraph.errors import DeviceError, GraphError, warn_once
from minigraph.graph import Graph, Input, Node, Parameter, here

LISTED = 3  # layers that a warning names


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


def check_descents(updates: Mapping[Parameter, Any]) -> None:
    """Raise GraphError if a new value from one optimizer has overwritten that from another."""
    descents = {p: value.descent for p, value in updates.items() if isinstance(value, Node)}
    for first in dict.fromkeys(filter(None, descents.values())):
        for p in first.parameters:
            last = descents.get(p)  # type: ignore[call-overload]
            if last and last is not first and p in last.parameters:
                raise GraphError(
                    f"compile: {first.name} ({first.source}) and {last.name} ({last.source}) both "
                    f"give {p.name} a new value, and the dict keeps that of the latter; minimize "
                    f"the sum of their losses, or compile a function for each {here()}"
                )


def warn_of_missing_updates(graph: Graph, updated: Collection[Parameter]) -> None:
    """Warn if `updated` holds the weights of a layer, but not the state that its call changes.

    Nodes tell which state that is (`Node.changes`).  A layer without weights counts as trained if
    anything is.
    """
    trained = {p for p in updated if p.trainable}
    if not trained:
        return
    calls: dict[Node, str] = {}  # where a layer was called, by the layer's state
    for node in graph:
        for changes in node.changes:
            trains = trained.intersection(changes.weights) if changes.weights else trained
            if trains and not set(updated).issuperset(changes.state):
                calls.setdefault(changes.state[0], str(node.source))
    if calls:
        listed = "; ".join(list(calls.values())[:LISTED])
        more = f"; and {len(calls) - LISTED} more" if len(calls) > LISTED else ""
        warn_once(
            "compile: evaluation will use wrong statistics, because the step trains layers without "
            f"updating their running ones ({listed}{more}): give updates="
            "{**optimizer.minimize(loss), **net.updates()}, made before net is called again "
            f"or made anew, {here()}",
            cause=f"updates left out: {listed}{more}",
        )

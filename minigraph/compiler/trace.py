"""The first stage of a compile: check the arguments and build the graph of outputs and updates."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minigraph.arguments import Kind, mapping
from minigraph.devices.factory import check_device
from minigraph.errors import DeviceError, DTypeError, GraphError, ShapeError, warn_once
from minigraph.graph import (
    Array,
    Graph,
    Input,
    Node,
    Parameter,
    as_node,
    can_cast,
    constant,
    here,
    is_symbolic,
    run_exclusively,
    with_sizes,
)
from minigraph.ops.elementwise import as_operand
from minigraph.ops.random import SEED, STEP, number_streams
from minigraph.passes.rewrite.loops import merge_loops

MAX_LISTED = 3  # layers that a warning names


def _updates(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, list | tuple) and all(isinstance(each, Mapping) for each in value):
        raise GraphError(
            f"a {type(value).__name__} of mappings; merge them into one: {{**first, **second}}"
        )
    return mapping(value)


DEVICE = Kind("the name of a device", check_device, DeviceError)
OPTIONS = Kind("a mapping of names to values", mapping)
INPUTS = Kind(
    "a sequence of inputs made by mg.input",
    lambda value: [value] if isinstance(value, Node) else list(value),
)
OUTPUTS = Kind(
    "an expression, or a sequence or dict of them",
    lambda value: value if isinstance(value, Node | Mapping) else list(value),
)
UPDATES = Kind("a mapping of parameters to new values (adam.minimize(loss) gives one)", _updates)


@dataclass(frozen=True)
class TracedGraph:
    """The graph of a function, as written.

    graph    its outputs are the results, then the new values of `updates`
    inputs   of the function; the graph also has the inputs of random ops
    results  number of outputs that the caller gets
    pack     converts the list of results to the structure that the caller gets
    """

    graph: Graph
    inputs: list[Node]
    results: int
    pack: Callable[[list[Array]], Any]
    updates: list[Parameter]

    def __str__(self) -> str:
        return str(self.graph)

    @property
    def is_symbolic(self) -> bool:
        """Whether the shapes of inputs have symbolic sizes."""
        return any(is_symbolic(x.shape) for x in self.inputs)

    def with_sizes(self, sizes: Mapping[str, int]) -> TracedGraph:
        """Return the graph for these values of the symbolic sizes."""
        graph = with_sizes(self.graph, sizes)
        return replace(self, graph=graph, inputs=[*graph.inputs[: len(self.inputs)]])


def trace(
    inputs: Sequence[Node], outputs: Any, updates: Mapping[Parameter, Any], freeze: bool
) -> TracedGraph:
    """Check the arguments of `CompGraph.compile`, and return their graph."""
    values, pack = _flat(outputs)
    results = list(map(_expression, values))
    _check_inputs(inputs)
    _check_descents(updates)
    new = {p: _new_value(p, value) for p, value in updates.items()}
    graph = Graph((*inputs, SEED, STEP), (*results, *new.values()))
    graph.check()
    _warn_of_missing_updates(graph, new)
    graph = _frozen(graph, new) if freeze else graph
    graph = merge_loops(number_streams(graph))
    return TracedGraph(graph, list(inputs), len(results), pack, list(new))


def unpacked(values: list[Array]) -> list[Array]:
    """Return the results unchanged; this is the `pack` of a list of outputs."""
    return values


def _flat(outputs: Any) -> tuple[Iterable[Any], Callable[[list[Array]], Any]]:
    """Return the outputs as a sequence, and the function that packs their values."""
    if isinstance(outputs, Node):
        return [outputs], operator.itemgetter(0)
    if isinstance(outputs, Mapping):
        names = list(outputs)
        if any(isinstance(name, Parameter) for name in names):
            raise GraphError(
                "compile: outputs has parameters as names, but outputs change no parameter; give "
                f"their new values as `updates`: compile(inputs, loss, updates) {here()}"
            )
        return outputs.values(), lambda values: dict(zip(names, values, strict=True))
    return outputs, unpacked


def _snapshot(parameter: Parameter) -> Array:
    """Return the current value, as a copy unless its memory is read-only."""

    def read() -> Array:
        value = parameter.state.read()
        return value.copy() if value.flags.writeable else value

    return run_exclusively([parameter.state], read, changes=False)


def _frozen(graph: Graph, updates: Mapping[Parameter, Node]) -> Graph:
    if updates:
        raise GraphError(
            f"compile: freeze=True makes parameters constants, so they cannot be updated; updates "
            f"has {', '.join(p.name for p in [*updates][:3])} {here()}"
        )
    constants: dict[Node, Node] = {p: constant(_snapshot(p), copy=False) for p in graph.parameters}
    return graph.replace_nodes(constants)


def _expression(value: Any) -> Node:
    """Return an output or new value as an expression; numbers and arrays become constants."""
    try:
        return as_node(value)
    except GraphError as error:
        raise type(error)(f"compile: {error} {here()}") from None


def _new_value(parameter: Parameter, value: Any) -> Node:
    """Return the expression for a parameter's new value in the parameter's dtype."""
    if not isinstance(parameter, Parameter):
        raise GraphError(f"compile: only a Parameter can be updated, not {parameter!r} {here()}")
    node = _expression(value)
    what = f"compile: the update of parameter {parameter.name} ({parameter.spec}) is {node.spec}"
    if node.shape != parameter.shape:
        raise ShapeError(f"{what}, made {node.source}; the shapes must be equal")
    if not can_cast(node.dtype, parameter.dtype):
        raise DTypeError(f"{what}, made {node.source}; the same_kind rule forbids this cast")
    try:
        return as_operand(node, parameter.dtype)
    except DTypeError as error:
        raise DTypeError(f"{what}: {error} {here()}") from None


def _check_inputs(inputs: Sequence[Node]) -> None:
    """Raise GraphError if a value is no input, or two inputs have the same name."""
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
                f"{x.source}, {here()}; give them different names, or, if a notebook's cell ran "
                "twice, use the inputs of one run"
            )
        names[x.name] = x


def _check_descents(updates: Mapping[Parameter, Any]) -> None:
    """Raise GraphError if a new value from one optimizer has overwritten that from another."""
    descents = {p: value.descent for p, value in updates.items() if isinstance(value, Node)}
    for first in dict.fromkeys(filter(None, descents.values())):
        for p in first.parameters:
            last = descents.get(p)  # type: ignore[call-overload]
            if last and last is not first and p in last.parameters:
                raise GraphError(
                    f"compile: {first.name} ({first.source}) and {last.name} ({last.source}) both "
                    f"give {p.name} a new value, and the dict keeps only the second; minimize the "
                    f"sum of their losses, or compile a function for each {here()}"
                )


def _warn_of_missing_updates(graph: Graph, updated: Collection[Parameter]) -> None:
    """Warn if `updated` has the weights of a layer, but not the state that the layer changes.

    `Node.changes` names that state.  A layer without weights counts as trained if any parameter is.
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
        listed = "; ".join(list(calls.values())[:MAX_LISTED])
        if len(calls) > MAX_LISTED:
            listed += f"; and {len(calls) - MAX_LISTED} more"
        warn_once(
            "compile: evaluation will use wrong statistics, because the step trains layers without "
            f"updating their running statistics ({listed}): give updates="
            "{**optimizer.minimize(loss), **net.updates()}, made before net is called again "
            f"or made anew, {here()}",
            cause=f"missing updates: {listed}",
        )

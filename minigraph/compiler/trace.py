"""The first stage of a compile: a graph of all that a function computes, as written."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minigraph.compiler.arguments import check_descents, check_inputs, warn_of_missing_updates
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import (
    Array,
    Graph,
    Node,
    Parameter,
    as_node,
    can_cast,
    constant,
    here,
    is_symbolic,
    with_sizes,
)
from minigraph.ops.elementwise import as_operand
from minigraph.ops.random import SEED, STEP, number_streams
from minigraph.passes.rewrite.loops import merge_loops, unroll_loops


@dataclass(frozen=True)
class TracedGraph:
    """All that a function computes, as written.

    graph    its outputs are the results, then the new values of `updates`
    inputs   what the function takes; the graph has the inputs of random ops besides
    results  how many outputs the caller gets
    pack     makes what the caller gets of the list of results
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
        """Whether calls give sizes of its inputs."""
        return any(is_symbolic(x.shape) for x in self.inputs)

    def with_sizes(self, sizes: Mapping[str, int]) -> TracedGraph:
        """Return the graph for these values of the symbolic sizes."""
        graph = with_sizes(self.graph, sizes)
        return replace(self, graph=graph, inputs=[*graph.inputs[: len(self.inputs)]])

    def without_loops(self) -> TracedGraph:
        """Return the graph with its loops unrolled."""
        return replace(self, graph=unroll_loops(self.graph))


def trace(
    inputs: Sequence[Node], outputs: Any, updates: Mapping[Parameter, Any], freeze: bool
) -> TracedGraph:
    """Return the graph of what `CompGraph.compile` takes, which is checked."""
    values, pack = _flat(outputs)
    results = list(map(_expression, values))
    check_inputs(inputs)
    check_descents(updates)
    new = {p: _new_value(p, value) for p, value in updates.items()}
    graph = Graph((*inputs, SEED, STEP), (*results, *new.values()))
    graph.check()
    warn_of_missing_updates(graph, new)
    graph = _frozen(graph, new) if freeze else graph
    graph = merge_loops(number_streams(graph))
    return TracedGraph(graph, list(inputs), len(results), pack, list(new))


def unpacked(values: list[Array]) -> list[Array]:
    """Return the list of results itself, which is how a list of outputs is packed."""
    return values


def _flat(outputs: Any) -> tuple[Iterable[Any], Callable[[list[Array]], Any]]:
    """Return the outputs in a row, and what packs their values for the caller."""
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
    return outputs, unpacked


def _frozen(graph: Graph, updates: Mapping[Parameter, Node]) -> Graph:
    """Return the graph with constants in place of its parameters."""
    if updates:
        raise GraphError(
            f"compile: freeze=True makes parameters constants, so it takes no updates; there are "
            f"updates of {', '.join(p.name for p in [*updates][:3])} {here()}"
        )
    constants: dict[Node, Node] = {p: constant(p.numpy()) for p in graph.parameters}
    return graph.map(lambda n, inputs: constants[n] if n in constants else n.replace(inputs))


def _expression(value: Any) -> Node:
    """Return an output or a new value, which may be a number or an array, as an expression."""
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
        raise ShapeError(f"{what}, made {node.source}; the shapes have to be equal")
    if not can_cast(node.dtype, parameter.dtype):
        raise DTypeError(f"{what}, made {node.source}; that does not cast by the same_kind rule")
    try:
        return as_operand(node, parameter.dtype)
    except DTypeError as error:
        raise DTypeError(f"{what}: {error} {here()}") from None

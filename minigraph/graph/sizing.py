"""Graphs with symbolic sizes, and numbers for these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from minigraph.errors import GraphError, located
from minigraph.graph.graph import Graph
from minigraph.graph.leaves import FromSizes, Input, constant
from minigraph.graph.loop import GraphOp
from minigraph.graph.node import Node
from minigraph.graph.spec import Spec
from minigraph.symbolic import put


def with_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph for these values of its symbolic sizes.

    Raises ShapeError, with the user's line, for sizes that some op cannot have.
    """
    new = {x: _with_sizes(x, (), sizes) for x in graph.inputs}

    def known(node: Node, inputs: tuple[Node, ...]) -> Node:
        return new[node] if node in new else _with_sizes(node, inputs, sizes)

    known_sizes = graph.map(known)
    same = all(x is y for x, y in new.items())
    return known_sizes if same else Graph(tuple(new.values()), known_sizes.outputs)


def _with_sizes(node: Node, inputs: tuple[Node, ...], sizes: Mapping[str, int]) -> Node:
    """Return `node` with other inputs and with numbers for symbolic sizes."""
    op = node.op
    if isinstance(op, Input):
        spec = Spec(put(node.shape, sizes), node.dtype)
        return node if spec == node.spec else Node(op, (), (spec,))
    given = {f.name: getattr(op, f.name) for f in fields(op)}  # type: ignore[arg-type]
    changed = {
        name: new for name, value in given.items() if (new := put(value, sizes)) is not value
    }
    if isinstance(op, GraphOp) and (inside := with_sizes(op.graph, sizes)) is not op.graph:
        changed["graph"] = inside
    made = node.replace(inputs)
    if made is node and not changed:
        return node
    op = replace(op, **changed) if changed else op  # type: ignore[type-var]
    try:
        if isinstance(op, FromSizes):
            return constant(op.forward())
        specs = op.inferred(inputs)
    except GraphError as error:
        what = "the sizes of the call" if isinstance(op, FromSizes) else op.name
        raise located(error, what, inputs, node.source) from None
    return Node(op, inputs, specs if isinstance(specs, tuple) else (specs,))

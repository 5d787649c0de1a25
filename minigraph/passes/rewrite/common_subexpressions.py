"""Common subexpressions: equal nodes become one."""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np

from minigraph.graph import Constant, Graph, Node, Op
from minigraph.passes.notes import Notes

LIMIT = 1 << 16  # bytes; a larger constant is equal only to itself


def share_common(graph: Graph, notes: Notes) -> Graph:
    """Replace equal nodes, the same op applied to the same inputs, by one of them.

    The one made first stays, so it is computed before any of its readers needs it.
    """
    classes: dict[Hashable, Node] = {}
    of: dict[Node, Node] = {}  # for each node, the first node of the graph that is equal to it
    earliest: dict[Node, Node] = {}
    for node in graph:
        first = of[node] = classes.setdefault(_key(node, of), node)
        if first is node or node.order < earliest[first].order:
            earliest[first] = node
    same = {node: (earliest[first],) for node, first in of.items() if earliest[first] is not node}
    if not same:
        return graph
    notes.fired["shared"] += len(same)
    return graph.map(
        lambda node, inputs: inputs[0] if node in same else node.replace(inputs), reads=same
    )


def _key(node: Node, of: dict[Node, Node]) -> Hashable:
    """Return what equal nodes have in common.

    Nodes are named by id, because `==` between nodes is an expression.
    """
    if isinstance(node.op, Constant) and node.spec.nbytes <= LIMIT:
        return Constant, node.spec, node.op.value.tobytes()
    if not node.inputs:
        return id(node)  # two inputs or parameters may well have one name
    inputs = [id(of[x]) for x in node.inputs]
    if node.op.commutative:
        inputs.sort()
    return node.op, _zeros(node.op), tuple(inputs)


def _zeros(op: Op) -> tuple[float, ...]:
    """Return the signs of an op's float attributes, because Python takes 0.0 and -0.0 for equal."""
    floats = (v for v in vars(op).values() if isinstance(v, float | np.floating))
    return tuple(math.copysign(1, v) for v in floats)

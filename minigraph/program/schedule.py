"""The order in which the nodes of a graph run."""

from __future__ import annotations

import sys
from collections.abc import Set as AbstractSet

from minigraph.graph import Graph, Item, Node
from minigraph.jit.fused import Fused, HorizontalFusion
from minigraph.ops.elementwise import Elementwise
from minigraph.passes.overlap import AwaitCollective

Order = tuple[int, int]


def schedule(graph: Graph, results: int, stay: AbstractSet[Node]) -> list[Node]:
    """Return the nodes in the order in which they are to run: that of `execution_order`."""
    order = execution_order(graph, results, stay)
    return sorted(order, key=lambda node: order[node])  # stable: equals stay as they are


def execution_order(
    graph: Graph, results: int, stay: AbstractSet[Node] = frozenset()
) -> dict[Node, Order]:
    """Return when each node is to run, inputs before their users.

    results  how many outputs the caller gets; the rest are new values of parameters
    stay     nodes that do not move

    That is the order in which they were made, so a gradient is used up soon after it is there;
    only the tail, elementwise ops and fused kernels on whose results nothing but updates depends,
    moves forward to where its inputs are there, so that no gradient waits for the end of the
    backward pass.  What waits for a collective runs as late as possible.
    """
    nodes = graph.by_order()
    tail = set(graph.outputs[results:]) - set(graph.outputs[:results])
    users = graph.users()
    for node in reversed(nodes):
        if node in stay or not _moves(node) or not all(user in tail for user in users[node]):
            tail.discard(node)
        elif users[node]:
            tail.add(node)
    tail -= set(graph.outputs[:results])
    start = (-1, -1)
    needed = _needed(nodes, users)
    times: dict[Node, Order] = {}
    for node in nodes:
        ready = max((times[x] for x in node.inputs), default=start)
        if isinstance(node.op, AwaitCollective):
            times[node] = max(ready, needed.get(node, (sys.maxsize, node.order[1])))
        else:
            times[node] = ready if not node.inputs or node in tail else max(node.order, ready)
    for node in reversed(nodes):
        if node in tail and times[node] == start:  # it needs nothing but parameters: no hurry
            # A count of steps runs last, when nothing reads the old number, so it stays in place.
            last = (sys.maxsize, node.order[1]) if all(s.size == 1 for s in node.specs) else start
            times[node] = min((times[user] for user in users[node]), default=last)
    return times


def _needed(nodes: list[Node], users: dict[Node, list[Node]]) -> dict[Node, Order]:
    """Return when nodes are first needed by one that does not move; not those that never are."""
    needed: dict[Node, Order] = {}
    for node in reversed(nodes):
        uses = [needed[user] for user in users[node] if user in needed]
        if not (_moves(node) or node.op.is_view or isinstance(node.op, AwaitCollective)):
            uses.append(node.order)
        if uses:
            needed[node] = min(uses)
    return needed


def _moves(node: Node) -> bool:
    return isinstance(node.op, Elementwise | Fused | HorizontalFusion | Item) or node.op.keeps_order


def origin(node: Node) -> tuple[Node, int]:
    """The node, and which of its results, whose memory holds the same elements as `node`."""
    while node.op.keeps_order:
        node = node.inputs[0]
    return (node.inputs[0], node.op.index) if isinstance(node.op, Item) else (node, 0)

"""The order in which the nodes of a graph run."""

from __future__ import annotations

from minigraph.graph import Graph, Item, Node
from minigraph.jit.fused import Fused, Together
from minigraph.ops.elementwise import Elementwise

Turn = tuple[int, int]


def schedule(graph: Graph, results: int) -> list[Node]:
    """Return the nodes in the order in which they are to run: that of `turns`."""
    turn = turns(graph, results)
    return sorted(turn, key=lambda node: turn[node])  # stable: equal turns keep their order


def turns(graph: Graph, results: int) -> dict[Node, Turn]:
    """Return when each node is to run, inputs before their users.

    results  how many outputs the caller gets; the rest are new values of parameters

    That is the order in which they were made, so a gradient is used up soon after it is there;
    only the tail, elementwise ops and fused kernels on whose results nothing but updates depends,
    moves forward to where its inputs are there, so that no gradient waits for the end of the
    backward pass.
    """
    order = graph.by_turn()
    tail = set(graph.outputs[results:]) - set(graph.outputs[:results])
    users = graph.users()
    for node in reversed(order):
        if not _moves(node) or not all(user in tail for user in users[node]):
            tail.discard(node)
        elif users[node]:
            tail.add(node)
    tail -= set(graph.outputs[:results])
    start = (-1, -1)
    turn: dict[Node, Turn] = {}
    for node in order:
        ready = max((turn[x] for x in node.inputs), default=start)
        moves = node in tail or not node.inputs
        turn[node] = ready if moves else max(node.turn, ready)
    for node in reversed(order):
        if node in tail and turn[node] == start:  # it needs nothing but parameters: no hurry
            turn[node] = min((turn[user] for user in users[node]), default=start)
    return turn


def _moves(node: Node) -> bool:
    return isinstance(node.op, Elementwise | Fused | Together | Item) or node.op.keeps_order


def origin(node: Node) -> tuple[Node, int]:
    """The node, and which of its results, whose memory holds the same elements as `node`."""
    while node.op.keeps_order:
        node = node.inputs[0]
    return (node.inputs[0], node.op.index) if isinstance(node.op, Item) else (node, 0)

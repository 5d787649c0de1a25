"""The order in which the nodes of a graph run."""

from __future__ import annotations

import sys
from collections.abc import Set as AbstractSet

from minigraph.graph import Graph, Item, Node
from minigraph.jit.fused import Fused, Together
from minigraph.jit.product import FusedProduct
from minigraph.ops.elementwise import Elementwise
from minigraph.passes.overlap import Await

Turn = tuple[int, int]


def schedule(graph: Graph, results: int, stay: AbstractSet[Node]) -> list[Node]:
    """Return the nodes in the order in which they are to run: that of `turns`."""
    turn = turns(graph, results, stay)
    return sorted(turn, key=lambda node: turn[node])  # stable: equal turns keep their order


def turns(graph: Graph, results: int, stay: AbstractSet[Node] = frozenset()) -> dict[Node, Turn]:
    """Return when each node is to run, inputs before their users.

    results  how many outputs the caller gets; the rest are new values of parameters
    stay     nodes that do not move

    That is the order in which they were made, so a gradient is used up soon after it is there;
    only the tail, elementwise ops and fused kernels on whose results nothing but updates depends,
    moves forward to where its inputs are there, so that no gradient waits for the end of the
    backward pass.  A kernel that computes a gradient itself stays where the gradient was made:
    before that the parameter that it updates may still be read.  What waits for a collective runs
    as late as possible.
    """
    order = graph.by_turn()
    tail = set(graph.outputs[results:]) - set(graph.outputs[:results])
    users = graph.users()
    for node in reversed(order):
        if node in stay or not _moves(node) or not all(user in tail for user in users[node]):
            tail.discard(node)
        elif users[node]:
            tail.add(node)
    tail -= set(graph.outputs[:results])
    start = (-1, -1)
    needed = _needed(order, users)
    turn: dict[Node, Turn] = {}
    for node in order:
        ready = max((turn[x] for x in node.inputs), default=start)
        if isinstance(node.op, Await):
            turn[node] = max(ready, needed.get(node, (sys.maxsize, node.turn[1])))
        else:
            moves = not node.inputs or (node in tail and not isinstance(node.op, FusedProduct))
            turn[node] = ready if moves else max(node.turn, ready)
    for node in reversed(order):
        if node in tail and turn[node] == start:  # it needs nothing but parameters: no hurry
            # A count of steps runs last, when nothing reads the old number, so it stays in place.
            last = (sys.maxsize, node.turn[1]) if all(s.size == 1 for s in node.specs) else start
            turn[node] = min((turn[user] for user in users[node]), default=last)
    return turn


def _needed(order: list[Node], users: dict[Node, list[Node]]) -> dict[Node, Turn]:
    """Return when nodes are first needed by one that does not move; not those that never are."""
    needed: dict[Node, Turn] = {}
    for node in reversed(order):
        turns = [needed[user] for user in users[node] if user in needed]
        if not (_moves(node) or node.op.is_view or isinstance(node.op, Await)):
            turns.append(node.turn)
        if turns:
            needed[node] = min(turns)
    return needed


def _moves(node: Node) -> bool:
    return isinstance(node.op, Elementwise | Fused | Together | Item) or node.op.keeps_order


def origin(node: Node) -> tuple[Node, int]:
    """The node, and which of its results, whose memory holds the same elements as `node`."""
    while node.op.keeps_order:
        node = node.inputs[0]
    return (node.inputs[0], node.op.index) if isinstance(node.op, Item) else (node, 0)

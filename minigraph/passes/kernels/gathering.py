"""Gathering: many small updates become one launch.

An optimizer's update of a batch norm's 64 weights takes less time than starting its kernel on
several threads does; a network has hundreds of such vectors (Apex and MXNet gather them into
"multi-tensor" kernels).  What is small depends on the device: see `Gathering`.
"""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.graph import Graph, Item, Node, in_place_of
from minigraph.jit.fused import Fused, Together
from minigraph.ops.elementwise import Elementwise
from minigraph.passes.notes import Notes


@dataclass(frozen=True)
class Gathering:
    """How large updates may be that run together in one launch; the defaults suit a processor.

    operand  bytes of each operand: one that is larger takes longer than a launch, and is better
             read at once, while it may still be in the cache
    waiting  bytes of the gradients of all of them, which are kept until the last one is there
    """

    operand: int = 64 << 10
    waiting: int = 1 << 20


def gather_updates(graph: Graph, notes: Notes, limits: Gathering) -> Graph:
    """Let small kernels whose results go to the caller and to parameters only run together."""
    gathered = _final(graph, limits)
    if len(gathered) < 2:
        return graph
    inside = set(gathered)
    notes.fired["together"] += len(gathered)
    new: dict[Node, Node] = {}
    for node in graph:
        if node not in inside and not (isinstance(node.op, Item) and node.inputs[0] in inside):
            new[node] = node.replace(tuple(new[x] for x in node.inputs)) if node.inputs else node
    op = Together(tuple(n.op for n in gathered), tuple(len(n.inputs) for n in gathered))
    with in_place_of(max(gathered, key=lambda node: node.turn)):
        results = iter(op.results(*(new[x] for node in gathered for x in node.inputs)))
    parts = {node: [next(results) for _ in node.specs] for node in gathered}
    for node in graph:
        if node in inside:
            new[node] = parts[node][0]
        elif node not in new:
            assert isinstance(node.op, Item)
            new[node] = parts[node.inputs[0]][node.op.index]
    return Graph(graph.inputs, tuple(new[y] for y in graph.outputs))


def _final(graph: Graph, limits: Gathering) -> list[Node]:
    """Return the small kernels that nothing waits for, and that read no more than they make."""
    users = graph.users()
    found: list[Node] = []
    total = 0
    for node in graph:
        if not isinstance(node.op, Fused | Elementwise) or not node.inputs:
            continue
        read = [user for user in users[node] if not isinstance(user.op, Item) or users[user]]
        sizes = [s.nbytes for s in (*node.specs, *(x.spec for x in node.inputs))]
        waits = sum(x.spec.nbytes for x in set(node.inputs) if x.inputs)
        small = all(0 < size <= limits.operand for size in sizes)
        room = total + waits <= limits.waiting
        if not read and small and room and waits <= sum(s.nbytes for s in node.specs):
            found.append(node)
            total += waits
    return found

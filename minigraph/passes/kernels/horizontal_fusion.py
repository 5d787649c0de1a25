"""HorizontalFusionLimits: many small updates become one launch.

An optimizer updates the 64 weights of a batch norm in less time than it takes to start a kernel on
several threads, and a network has hundreds of such vectors.  Apex and MXNet do the same with their
"multi-tensor" kernels.  How small an update has to be depends on the device: see
`HorizontalFusionLimits`.
"""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.graph import Graph, Item, Node, in_place_of
from minigraph.jit.fused import Fused, HorizontalFusion
from minigraph.ops.elementwise import Elementwise
from minigraph.passes.notes import Notes


@dataclass(frozen=True)
class HorizontalFusionLimits:
    """How large updates may be that run together in one launch; the defaults suit a processor.

    operand  largest size of an operand in bytes: a larger one takes longer than a launch, and is
             better read as soon as it is computed, while it may still be in the cache
    waiting  largest size of all gradients in bytes, since they are kept until the last is computed
    """

    operand: int = 64 << 10
    waiting: int = 1 << 20


def fuse_horizontally(
    graph: Graph, notes: Notes, horizontal_fusion: HorizontalFusionLimits
) -> Graph:
    """Let small kernels whose results are outputs or new values of parameters run together."""
    updates = _small_updates(graph, horizontal_fusion)
    if len(updates) < 2:
        return graph
    notes.fired["updates in one kernel"] += len(updates)
    op = HorizontalFusion(tuple(n.op for n in updates), tuple(len(n.inputs) for n in updates))
    with in_place_of(max(updates, key=lambda node: node.order)):
        results = iter(op.results(*(x for node in updates for x in node.inputs)))
    return graph.substitute({node: [next(results) for _ in node.specs] for node in updates})


def _small_updates(graph: Graph, limits: HorizontalFusionLimits) -> list[Node]:
    """Return small kernels whose results nothing reads, in place of no fewer bytes of operands."""
    users = graph.users()
    updates: list[Node] = []
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
            updates.append(node)
            total += waits
    return updates

"""Horizontal fusion: many small kernels become one launch.

An optimizer updates the 64 weights of a batch norm in less time than it takes to start a kernel on
several threads, and a network has hundreds of such vectors.  Apex and MXNet do the same with their
"multi-tensor" kernels.  Mixed precision casts as many weights.  How small a kernel has to be
depends on the device: see `HorizontalFusionLimits`.
"""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.graph import Graph, Item, Node, in_place_of
from minigraph.jit.fused import Fused, HorizontalFusion
from minigraph.ops.elementwise import Elementwise
from minigraph.passes.notes import Notes


@dataclass(frozen=True)
class HorizontalFusionLimits:
    """How large kernels may be that run together in one launch; the defaults suit a processor.

    operand  largest size of an operand in bytes: a larger one takes longer than a launch, and is
             better read as soon as it is computed, while it may still be in the cache
    waiting  largest size in bytes of all that waits: gradients until the last is computed, casts of
             weights until they are read
    """

    operand: int = 64 << 10
    waiting: int = 1 << 20


def fuse_horizontally(
    graph: Graph, notes: Notes, horizontal_fusion: HorizontalFusionLimits
) -> Graph:
    """Let small kernels run together: those at the end of the graph, and those at its beginning.

    The former make outputs or new values of parameters, the latter casts of weights and the like.
    """
    updates = _small_updates(graph, horizontal_fusion)
    graph = _together(graph, notes, updates, "updates in one kernel")
    return _together(graph, notes, _small_casts(graph, horizontal_fusion), "casts in one kernel")


def _together(graph: Graph, notes: Notes, kernels: list[Node], what: str) -> Graph:
    if len(kernels) < 2:
        return graph
    notes.fired[what] += len(kernels)
    op = HorizontalFusion(tuple(n.op for n in kernels), tuple(len(n.inputs) for n in kernels))
    with in_place_of(max(kernels, key=lambda node: node.order)):
        results = iter(op.results(*(x for node in kernels for x in node.inputs)))
    return graph.substitute({node: [next(results) for _ in node.specs] for node in kernels})


def _small_updates(graph: Graph, limits: HorizontalFusionLimits) -> list[Node]:
    """Return small kernels whose results nothing reads, in place of no fewer bytes of operands."""
    users = graph.users()
    updates: list[Node] = []
    total = 0
    for node in filter(lambda node: _is_small_kernel(node, limits), graph):
        read = [user for user in users[node] if not isinstance(user.op, Item) or users[user]]
        waits = sum(x.spec.nbytes for x in set(node.inputs) if x.inputs)
        room = total + waits <= limits.waiting
        if not read and room and waits <= sum(s.nbytes for s in node.specs):
            updates.append(node)
            total += waits
    return updates


def _small_casts(graph: Graph, limits: HorizontalFusionLimits) -> list[Node]:
    """Return small kernels of arguments and parameters that make fewer bytes than they read."""
    casts: list[Node] = []
    total = 0
    for node in filter(lambda node: _is_small_kernel(node, limits), graph):
        made = sum(spec.nbytes for spec in node.specs)
        read = sum(x.spec.nbytes for x in node.inputs)
        first = not any(x.inputs for x in node.inputs)
        if first and made < read and total + made <= limits.waiting:
            casts.append(node)
            total += made
    return casts


def _is_small_kernel(node: Node, limits: HorizontalFusionLimits) -> bool:
    if not isinstance(node.op, Fused | Elementwise) or not node.inputs:
        return False
    specs = (*node.specs, *(x.spec for x in node.inputs))
    return all(0 < spec.nbytes <= limits.operand for spec in specs)

"""Horizontal fusion: many small kernels become one launch.

An optimizer updates the 64 weights of a batch norm in less time than a launch on several threads
takes, and a network has hundreds of such vectors; mixed precision casts as many weights.  Apex and
MXNet have "multi-tensor" kernels for this.  The limits depend on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.graph import Graph, Item, Node, in_place_of
from minigraph.jit.fused import Fused, HorizontalFusion
from minigraph.ops.elementwise import Elementwise
from minigraph.passes.notes import Notes


@dataclass(frozen=True)
class HorizontalFusionLimits:
    """Limits for kernels that share a launch; the defaults are for a CPU.

    operand  bytes of an operand: a larger one takes longer than a launch, and is better read while
             it is in the cache
    waiting  total bytes that wait: gradients for the last gradient, casts of weights for readers
    """

    operand: int = 64 << 10
    waiting: int = 1 << 20


def fuse_horizontally(
    graph: Graph, notes: Notes, horizontal_fusion: HorizontalFusionLimits
) -> Graph:
    """Fuse small kernels at the end of the graph, and small kernels at its beginning.

    The former compute outputs and new values of parameters, the latter mainly casts of weights.
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
    """Return small kernels whose results are only outputs, and no smaller than their operands."""
    users = graph.users()
    updates: list[Node] = []
    total = 0
    for node in filter(lambda node: _is_small_kernel(node, limits), graph):
        readers = [user for user in users[node] if not isinstance(user.op, Item) or users[user]]
        waiting = sum(x.spec.nbytes for x in set(node.inputs) if x.inputs)
        fits = total + waiting <= limits.waiting
        if not readers and fits and waiting <= sum(s.nbytes for s in node.specs):
            updates.append(node)
            total += waiting
    return updates


def _small_casts(graph: Graph, limits: HorizontalFusionLimits) -> list[Node]:
    """Return small kernels of arguments and parameters with results smaller than their operands."""
    casts: list[Node] = []
    total = 0
    for node in filter(lambda node: _is_small_kernel(node, limits), graph):
        written = sum(spec.nbytes for spec in node.specs)
        read = sum(x.spec.nbytes for x in node.inputs)
        first = not any(x.inputs for x in node.inputs)
        if first and written < read and total + written <= limits.waiting:
            casts.append(node)
            total += written
    return casts


def _is_small_kernel(node: Node, limits: HorizontalFusionLimits) -> bool:
    if not isinstance(node.op, Fused | Elementwise) or not node.inputs:
        return False
    specs = (*node.specs, *(x.spec for x in node.inputs))
    return all(0 < spec.nbytes <= limits.operand for spec in specs)

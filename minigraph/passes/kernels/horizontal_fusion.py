"""Horizontal fusion: many small kernels become one launch.

Updating the 64 weights of a batch norm takes less time than a launch on several threads, and a
network has hundreds of these vectors.  Mixed precision casts as many weights.  Apex and MXNet have
"multi-tensor" kernels for this.  The limits depend on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minigraph.graph import Graph, Item, Node, in_place_of
from minigraph.jit.fused import Fused, HorizontalFusion
from minigraph.ops.elementwise import Elementwise
from minigraph.passes.notes import Notes


@dataclass(frozen=True)
class HorizontalFusionLimits:
    """Limits for kernels that share a launch; the defaults are for a CPU.

    operand  bytes of an operand: a larger operand takes longer than a launch, and is better read
             while it is in the cache
    waiting  total bytes that stay in memory until the launch (gradients) or after it (casts)
    """

    operand: int = 64 << 10
    waiting: int = 1 << 20


def fuse_horizontally(
    graph: Graph, notes: Notes, horizontal_fusion: HorizontalFusionLimits
) -> Graph:
    """Fuse small kernels at the end of the graph, and small kernels at its beginning.

    At the end, they compute outputs and new values of parameters; at the beginning, mainly casts of
    weights.
    """
    for candidates, name in ((_updates, "updates in one kernel"), (_casts, "casts in one kernel")):
        kernels: list[Node] = []
        waiting = 0
        for node, nbytes in candidates(graph, horizontal_fusion.operand):
            if waiting + nbytes <= horizontal_fusion.waiting:
                kernels.append(node)
                waiting += nbytes
        if len(kernels) < 2:
            continue
        notes.fired[name] += len(kernels)
        op = HorizontalFusion(tuple(n.op for n in kernels), tuple(len(n.inputs) for n in kernels))
        with in_place_of(max(kernels, key=lambda node: node.order)):
            results = iter(op.results(*(x for node in kernels for x in node.inputs)))
        graph = graph.substitute({node: [next(results) for _ in node.specs] for node in kernels})
    return graph


def _updates(graph: Graph, limit: int) -> Iterator[tuple[Node, int]]:
    """Yield small kernels whose results no node reads, with the bytes of their computed operands.

    The results have at least as many bytes.
    """
    users = graph.users()
    for node in graph:
        if _is_small_kernel(node, limit):
            readers = [user for user in users[node] if not isinstance(user.op, Item) or users[user]]
            waiting = sum(x.spec.nbytes for x in set(node.inputs) if x.inputs)
            if not readers and waiting <= sum(spec.nbytes for spec in node.specs):
                yield node, waiting


def _casts(graph: Graph, limit: int) -> Iterator[tuple[Node, int]]:
    """Yield small kernels of leaves, with the bytes of their results, which are smaller."""
    for node in graph:
        if _is_small_kernel(node, limit) and not any(x.inputs for x in node.inputs):
            result_bytes = sum(spec.nbytes for spec in node.specs)
            if result_bytes < sum(x.spec.nbytes for x in node.inputs):
                yield node, result_bytes


def _is_small_kernel(node: Node, limit: int) -> bool:
    if not isinstance(node.op, Fused | Elementwise) or not node.inputs:
        return False
    specs = (*node.specs, *(x.spec for x in node.inputs))
    return all(0 < spec.nbytes <= limit for spec in specs)

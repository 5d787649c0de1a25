"""What a cheap value is made of, and which kernels compute it again rather than read it."""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.graph import Node
from minigraph.jit.expression import is_number
from minigraph.passes.kernels.group import FusionGroup, is_cheap, is_placement

NEAR = 10  # cheap ops that a kernel computes again rather than read their result, at most


@dataclass(frozen=True)
class RecomputeCosts:
    """Finds the sources of values in a graph.

    fusable  the nodes that kernels can compute
    outputs  of the graph, which are computed anyway
    """

    fusable: set[Node]
    outputs: set[Node]

    def copies(
        self, node: Node, readers: list[FusionGroup], outside: bool, beside: bool
    ) -> list[FusionGroup]:
        """Return the kernels for which computing a node again costs less than reading it.

        readers  the kernels that read it, but for the one that computes it anyway
        outside  whether others read it, too
        beside   whether only kernels run between all of them
        """
        if not is_cheap(node):
            return []
        sources = self._near(node)[1]
        costs = [sum(x.spec.nbytes for x in sources if x not in g.reads) for g in readers]
        there = self.fusable.isdisjoint(sources - self.outputs)
        # Kept a little longer, the sources take no more memory: then not writing counts, too.
        spared = len(readers) + beside
        if there and not outside and sum(costs) <= spared * node.spec.nbytes:
            return readers
        large = {x for x in node.inputs if _is_large(x, node)}
        return [g for g in readers if g.reads.keys() >= large or g.reads.keys() >= sources]

    def reduced(self, reduction: Node) -> set[Node]:
        """Return the value that a reduction reads, and those it is made of by a few cheap ops."""
        (x,) = reduction.inputs
        if not is_cheap(x):
            return {x}
        near, sources = self._near(x)
        return sources.union(near)

    def _near(self, node: Node) -> tuple[list[Node], set[Node]]:
        """Return a node with the few cheap ops that lead to it, and the large values they read."""
        found: set[Node] = set()
        near = [node]
        for y in near:
            for x in y.inputs:
                if _is_large(x, node):
                    cheap = x in self.fusable and is_cheap(x) and x not in self.outputs
                    if (cheap or is_placement(x)) and len(near) < NEAR:
                        near.append(x)
                    else:
                        found.add(x)
        return near, found


def _is_large(x: Node, node: Node) -> bool:
    """Whether the cost of reading `x` matters beside that of reading `node`."""
    return not is_number(x) and x.spec.nbytes > node.spec.nbytes // 8

"""The op that lowering puts before kernels whose inputs have to be contiguous."""

from __future__ import annotations

from minigraph.graph.dtypes import Array
from minigraph.graph.node import Node, Op, in_place_of
from minigraph.graph.spec import Shape, Spec


class Copy(Op):
    """x, contiguous in memory.  Lowering puts it before kernels that need that."""

    def infer(self, x: Spec) -> Spec:
        return x

    def forward(self, x: Array) -> Array:
        return x

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...]:
        return tuple(range(len(x)))

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy,)


def copy_of(node: Node) -> Node:
    """Return a node that copies the result of `node`, as if the user's same line had made it."""
    with in_place_of(node):
        return Copy()(node)

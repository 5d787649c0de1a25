"""Taking composed ops apart, so that fusion sees the simpler ops that they are made of."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.graph import Graph, Item, Node, Op, Spec
from minigraph.jit.domain import NotFusible
from minigraph.jit.kernel import check_speed, kernel_of
from minigraph.jit.loops import BLOCKS
from minigraph.passes.notes import Notes


def decompose(graph: Graph, notes: Notes) -> Graph:
    """Replace composed ops, such as a batch norm, by simpler ones.

    An op is left alone if one generated kernel could not compute all of it, as for a normalisation
    with the channels last: its own kernel reads memory less often than several would.
    """
    parts: dict[Node, Sequence[Node]] = {}

    def rewrite(node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node.op, Item) and node.inputs[0] in parts:
            return parts[node.inputs[0]][node.op.index]
        if not (node.op.composed and _is_one_kernel(node.op, tuple(x.spec for x in node.inputs))):
            return node.replace(inputs)
        notes.fired[node.op.name] += 1
        parts[node] = node.op.expand(*inputs)
        return parts[node][0]  # in place of a bundle too: only its items read that

    return graph.map(rewrite)


def _is_one_kernel(op: Op, inputs: tuple[Spec, ...]) -> bool:
    shapes = [x.shape for x in inputs]
    last = {shape[1] for shape in shapes if len(shape) == 2}  # of vectors that go with images
    if len(shapes[0]) == 5 and last and last.isdisjoint(BLOCKS):
        return True
    try:
        check_speed(kernel_of(op, inputs, tuple([x.strides for x in inputs])))
    except NotFusible:
        return False
    return all(x.size for x in inputs)

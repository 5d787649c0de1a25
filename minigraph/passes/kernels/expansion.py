"""Taking composed ops apart, so that fusion sees what they are made of."""

from __future__ import annotations

import functools

from minigraph.graph import Graph, Item, Node, Op, Spec, in_place_of
from minigraph.jit.domain import Unfit
from minigraph.jit.fused import meaning
from minigraph.jit.kernel import specialise
from minigraph.jit.loops import BLOCKS
from minigraph.passes.notes import Notes


def take_apart(graph: Graph, notes: Notes) -> Graph:
    """Replace composed ops, such as a batch norm, by simpler ones.

    Only those that one kernel can compute also when nothing joins it: taken apart, another one
    would run over memory more often than its own kernel does.  Normalisations with the channels
    last have none.
    """
    new: dict[Node, tuple[Node, ...]] = {}
    for node in graph:
        inputs = tuple(new[x][0] for x in node.inputs)
        if isinstance(node.op, Item):
            parts = new[node.inputs[0]]
            whole = len(parts) == 1  # the bundle, as it is
            new[node] = (node.replace(inputs) if whole else parts[node.op.index],)
        elif node.op.composed and _comes_apart(node.op, tuple(x.spec for x in node.inputs)):
            with in_place_of(node):
                new[node] = node.op.expand(*inputs)
            notes.fired[node.op.name] += 1
        else:
            new[node] = (node.replace(inputs) if node.inputs else node,)
    return Graph(graph.inputs, tuple(new[y][0] for y in graph.outputs))


@functools.lru_cache(1024)
def _comes_apart(op: Op, inputs: tuple[Spec, ...]) -> bool:
    shapes = [x.shape for x in inputs]
    last = {shape[1] for shape in shapes if len(shape) == 2}  # of vectors that go with images
    if len(shapes[0]) == 5 and last and last.isdisjoint(BLOCKS):
        return True
    try:
        specialise(meaning(op, inputs), [x.strides for x in inputs])
    except Unfit:
        return False
    return all(x.size for x in inputs)

"""Rewrites of loops: rewriting bodies, merging, dropping unused results, and unrolling."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from minigraph.graph import Graph, Item, Node, in_place_of, toposort
from minigraph.ops.scan import Scan
from minigraph.passes.rewrite.rule import has_op_of


def map_bodies(graph: Graph, rewrite: Callable[[Graph], Graph]) -> Graph:
    """Return the graph with the bodies of its loops rewritten and checked."""
    if not has_op_of(graph, Scan):
        return graph

    def mapped(node: Node, inputs: tuple[Node, ...]) -> Node:
        if not isinstance(node.op, Scan):
            return node.replace(inputs)
        body = rewrite(node.op.graph)
        if body is node.op.graph:
            return node.replace(inputs)
        body.check()
        return Node(dataclasses.replace(node.op, graph=body), inputs, node.specs)

    return graph.map(mapped)


def merge_loops(graph: Graph) -> Graph:
    """Merge loops with the same body and inputs, and drop results that nothing reads.

    A gradient runs the loop again with results for intermediate values of the body; this merges it
    with the loop of the forward pass.
    """
    loops = [node for node in graph if isinstance(node.op, Scan)]
    used: dict[Node, set[int]] = {node: set() if node.is_bundle else {0} for node in loops}
    for node in graph:
        if isinstance(node.op, Item) and node.inputs[0] in used:
            used[node.inputs[0]].add(node.op.index)
    groups: dict[Hashable, list[Node]] = {}
    for node in used:
        groups.setdefault(_key(node), []).append(node)
    results: dict[Node, Sequence[Node]] = {}
    for group in groups.values():
        requested = dict.fromkeys(_values(node)[i] for node in group for i in sorted(used[node]))
        merged = _merged(group, requested)
        if merged:
            results.update((node, [merged.get(y, node) for y in _values(node)]) for node in group)
    if results:
        graph = graph.substitute(results)
    return map_bodies(graph, merge_loops)


class _Value(NamedTuple):
    """A result of a loop: the final value of a carry, or the values of all steps, stacked."""

    node: Node
    stacked: bool


def _values(node: Node) -> list[_Value]:
    assert isinstance(node.op, Scan)
    return [_Value(y, i >= node.op.carried) for i, y in enumerate(node.op.graph.outputs)]


def _key(node: Node) -> Hashable:
    """Return a key that is equal for loops that can be merged."""
    op = node.op
    assert isinstance(op, Scan)
    nodes = (node.inputs, op.graph.inputs, op.graph.outputs[: op.carried])
    return *(tuple(map(id, each)) for each in nodes), op.length, op.reverse


def _merged(group: Sequence[Node], requested: dict[_Value, None]) -> dict[_Value, Node]:
    """Return the requested results, computed by one loop; {} if the loop would be unchanged."""
    first = min(group, key=lambda node: node.order)
    op = first.op
    assert isinstance(op, Scan)
    inputs, finals = op.graph.inputs, op.graph.outputs[: op.carried]
    stacks = [y.node for y in requested if y.stacked]
    carries = {i for i, y in enumerate(finals) if _Value(y, False) in requested}
    reached: set[Node] = set()
    while True:  # a result may depend on a carry, which may depend on another carry
        reached = set(toposort([*stacks, *(finals[i] for i in carries)]))
        reached_carries = {i for i, x in enumerate(inputs[: op.carried]) if x in reached}
        if reached_carries <= carries:
            break
        carries |= reached_carries
    others = {i for i, x in enumerate(inputs) if i >= op.carried and x in reached}
    indices = sorted(carries | others)
    outputs = (*(finals[i] for i in sorted(carries)), *stacks)
    if len(group) == 1 and len(indices) == len(inputs) and len(outputs) == len(op.graph.outputs):
        return {}
    sliced = sum(op.carried <= i < op.carried + op.scanned for i in indices)
    body = Graph(tuple(inputs[i] for i in indices), outputs)
    with in_place_of(first):
        loop = Scan(body, len(carries), sliced, op.length, op.reverse)
        results = loop.results(*(first.inputs[i] for i in indices))
    values = [_Value(y, i >= len(carries)) for i, y in enumerate(outputs)]
    return dict(zip(values, results, strict=True))


def unroll_loops(graph: Graph) -> Graph:
    """Replace loops by the ops of all steps, for devices without loops."""
    while has_op_of(graph, Scan):
        results: dict[Node, Sequence[Node]] = {}
        for node in graph:
            if isinstance(node.op, Scan):
                with in_place_of(node):
                    results[node] = node.op.expand(*node.inputs)
        graph = graph.substitute(results)
    return graph

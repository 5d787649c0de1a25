"""Library fusion of batch normalisation and the relu after it, with what is added in between.

The gradient is told from the ops of the backward pass alone.  A value in between that somebody else
reads, or that is an output, has to be computed anyway: then all stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from minigraph.autodiff import dependents
from minigraph.graph import Graph, Item, Node, Op, in_place_of
from minigraph.ops.activation import Relu
from minigraph.ops.arithmetic import Add
from minigraph.ops.comparison import LessEqual, Where
from minigraph.ops.normalization import (
    BatchNorm,
    BatchNormBackward,
    BatchNormRelu,
    BatchNormReluBackward,
)
from minigraph.ops.shape import broadcast_to
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.fact import filled_with, has, read_once


def fuse_batch_norm(graph: Graph, notes: Notes) -> Graph:
    """Return the graph with relu(batch norm [+ residual]) made one op, and its gradient another."""
    if not has(graph, BatchNorm, BatchNormBackward):
        return graph
    return _fuse_backward(_fuse_forward(graph, notes), notes)


@dataclass(frozen=True, eq=False)
class _Fusion:
    """Nodes that become results of one op.

    build    return the op's results for what has become of `inputs`
    place    the node whose turn and source the op takes
    results  the nodes, with which result each becomes
    """

    build: Callable[..., Sequence[Node]]
    inputs: tuple[Node, ...]
    place: Node
    results: dict[Node, int]


def _fuse_forward(graph: Graph, notes: Notes) -> Graph:
    users = graph.users()
    private = read_once(graph)
    # The fused op gives mean and variance and needs the residual: one that needs any of them would
    # close a cycle.
    late = dependents(graph.outputs, [x for x in graph if _index(x, BatchNorm)])
    fusions: list[_Fusion] = []
    for relu in graph:
        if not isinstance(relu.op, Relu):
            continue
        for y, residual in _normalised(relu.inputs[0], private):
            norm = y.inputs[0]
            statistics = _items(x for x in users[norm] if x is not y)
            if 0 in statistics.values() or late.intersection(residual):
                continue
            assert isinstance(norm.op, BatchNorm)
            op = BatchNormRelu(norm.op.eps, bool(residual))
            inputs = (*norm.inputs, *residual)
            fusions.append(_Fusion(op.results, inputs, relu, {relu: 0, **statistics}))
            notes.fired[f"{norm.name} with {'residual and ' if residual else ''}relu"] += 1
            break
    return _rebuild(graph, fusions, late)


def _normalised(z: Node, private: set[Node]) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Yield each y of a batch norm that z is, or is a sum with, and what else is in the sum."""
    if z not in private:
        return
    if _index(z, BatchNorm) == 0:
        yield z, ()
    if isinstance(z.op, Add):
        for y, other in (z.inputs, z.inputs[::-1]):
            if y in private and _index(y, BatchNorm) == 0 and y.spec == other.spec:
                yield y, (other,)


def _fuse_backward(graph: Graph, notes: Notes) -> Graph:
    users = graph.users()
    private = read_once(graph)
    norms: dict[Node, Node] = {}  # for each gradient that comes through a relu, its first reader
    for node in graph:
        if isinstance(node.op, BatchNormBackward) and _through_relu(node.inputs[0]):
            norms.setdefault(node.inputs[0], node)
    # The fused op gives dz to its other readers and needs x and the statistics: if these need any
    # such dz they would close a cycle.
    late = dependents(graph.outputs, norms.keys() - private)
    fusions: list[_Fusion] = []
    for dz, norm in norms.items():
        shared = dz not in private
        if not shared or late.isdisjoint(norm.inputs[1:]):
            fusions.append(_backward(dz, norm, _items(users[norm]), shared))
            notes.fired[f"{norm.name} with relu"] += 1
    return _rebuild(graph, fusions, late)


def _backward(dz: Node, norm: Node, results: dict[Node, int], shared: bool) -> _Fusion:
    """The gradient of a batch norm, which reads dz, and of the relu after it."""
    assert isinstance(norm.op, BatchNormBackward)
    op = BatchNormReluBackward(norm.op.eps, shared)

    def build(dy: Node, *others: Node) -> Sequence[Node]:
        return op.results(broadcast_to(dy, dz.shape), *others)

    inputs = (*_through_relu(dz), *norm.inputs[1:])
    return _Fusion(build, inputs, norm, {**results, dz: 3} if shared else results)


def _through_relu(dz: Node) -> tuple[Node, ...]:
    """(dy, y), if dz is what y = relu(z) makes of dy: 0 where y <= 0."""
    match dz:
        case Node(op=Where(), inputs=[Node(op=LessEqual(), inputs=[y, limit]), zero, dy]):
            if filled_with(limit) == filled_with(zero) == 0 and y.spec == dz.spec:
                return dy, y
    return ()


def _rebuild(graph: Graph, fusions: Sequence[_Fusion], late: set[Node]) -> Graph:
    """Return the graph with the fusions made.

    late  comes after all other nodes; with a node it holds all that depend on it
    """
    if not fusions:
        return graph
    fused = {old: (fusion, i) for fusion in fusions for old, i in fusion.results.items()}
    made: dict[_Fusion, Sequence[Node]] = {}
    new: dict[Node, Node] = {}
    for node in sorted(graph, key=late.__contains__):
        if node not in fused:
            new[node] = node.replace(tuple(new[x] for x in node.inputs))
            continue
        fusion, i = fused[node]
        if fusion not in made:
            with in_place_of(fusion.place):
                made[fusion] = fusion.build(*(new[x] for x in fusion.inputs))
        new[node] = made[fusion][i]
    return Graph(graph.inputs, tuple(new[y] for y in graph.outputs))


def _index(x: Node, kind: type[Op]) -> int | None:
    """Which result of an op of this kind x is; None if it is none."""
    return x.op.index if isinstance(x.op, Item) and isinstance(x.inputs[0].op, kind) else None


def _items(nodes: Iterable[Node]) -> dict[Node, int]:
    """The readers of a bundle, with which result each is."""
    return {x: x.op.index for x in nodes if isinstance(x.op, Item)}

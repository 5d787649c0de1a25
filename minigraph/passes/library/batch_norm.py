"""Library fusion of batch normalisation, an optional residual sum, and the relu after it.

The pass recognises the gradient by the ops of the backward pass alone.  It does not fuse if an
intermediate value is an output or has another reader, because then the value must be stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minigraph.graph import Graph, Item, Node, dependents, in_place_of
from minigraph.ops.activation import Relu
from minigraph.ops.arithmetic import Add
from minigraph.ops.batch_norm import (
    BatchNorm,
    BatchNormBackward,
    BatchNormRelu,
    BatchNormReluBackward,
)
from minigraph.ops.comparison import LessEqual, Where
from minigraph.ops.shape import broadcast_to
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.rule import filled_with, read_once


def fuse_batch_norm(graph: Graph, notes: Notes) -> Graph:
    """Fuse relu(batch norm [+ residual]) into one op, and its gradient into another."""
    return _fuse_backward(_fuse_forward(graph, notes), notes)


def _fuse_forward(graph: Graph, notes: Notes) -> Graph:
    users = graph.users()
    private = read_once(graph)
    # The fused op reads the residual and returns mean and variance, so a residual that depends on
    # these would close a cycle.
    dependent_nodes = dependents(graph.outputs, [x for x in graph if _result_index(x) in (1, 2)])
    fused: dict[Node, Sequence[Node]] = {}
    for relu in graph:
        if not isinstance(relu.op, Relu):
            continue
        for y, residual in _normalised(relu.inputs[0], private):
            norm = y.inputs[0]
            assert isinstance(norm.op, BatchNorm)
            read_again = any(_result_index(x) == 0 for x in users[norm] if x is not y)
            if read_again or dependent_nodes.intersection(residual):
                continue
            op = BatchNormRelu(norm.op.eps, bool(residual))
            with in_place_of(relu, like=norm):
                fused[norm] = op.results(*norm.inputs, *residual)
            fused[relu] = fused[norm][:1]
            notes.fired[f"{norm.name} with {'residual and ' if residual else ''}relu"] += 1
            break
    return graph.substitute(fused)


def _normalised(z: Node, private: set[Node]) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Yield (y, ()) if z is the result y of a batch norm, and (y, (r,)) if z is y + r."""
    if z not in private:
        return
    if _result_index(z) == 0:
        yield z, ()
    if isinstance(z.op, Add):
        for y, other in (z.inputs, z.inputs[::-1]):
            if y in private and _result_index(y) == 0 and y.spec == other.spec:
                yield y, (other,)


def _result_index(x: Node) -> int | None:
    """Return the index of x among the results of a batch norm; None for other nodes."""
    return x.op.index if isinstance(x.op, Item) and isinstance(x.inputs[0].op, BatchNorm) else None


def _fuse_backward(graph: Graph, notes: Notes) -> Graph:
    private = read_once(graph)
    norms: dict[Node, Node] = {}  # for each gradient of a relu, the first batch norm that reads it
    for node in graph:
        if isinstance(node.op, BatchNormBackward) and _through_relu(node.inputs[0]):
            norms.setdefault(node.inputs[0], node)
    # If dz has other readers, the fused op returns it too.  The op reads x and the statistics, so
    # it would close a cycle if these depended on dz.
    dependent_nodes = dependents(graph.outputs, norms.keys() - private)
    fused: dict[Node, Sequence[Node]] = {}
    for dz, norm in norms.items():
        shared = dz not in private
        if shared and not dependent_nodes.isdisjoint(norm.inputs[1:]):
            continue
        assert isinstance(norm.op, BatchNormBackward)
        op = BatchNormReluBackward(norm.op.eps, shared)
        dy, y = _through_relu(dz)
        with in_place_of(norm):
            fused[norm] = op.results(broadcast_to(dy, dz.shape), y, *norm.inputs[1:])
        if shared:
            fused[dz] = fused[norm][3:]
        notes.fired[f"{norm.name} with relu"] += 1
    return graph.substitute(fused)


def _through_relu(dz: Node) -> tuple[Node, ...]:
    """Return (dy, y) if dz is the gradient of y = relu(z), dy where y > 0; else ()."""
    match dz:
        case Node(op=Where(), inputs=[Node(op=LessEqual(), inputs=[y, limit]), zero, dy]):
            if filled_with(limit) == filled_with(zero) == 0 and y.spec == dz.spec:
                return dy, y
    return ()

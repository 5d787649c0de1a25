"""Library fusion of the logarithm of a softmax and the cross entropy that reads it.

The gradient is recognised by the ops of the backward pass alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.graph import Constant, Graph, Node, constant, in_place_of
from minigraph.ops import negative
from minigraph.ops.arithmetic import Multiply, Negative, Subtract
from minigraph.ops.comparison import Where
from minigraph.ops.exponential import Exp
from minigraph.ops.indexing import OneHot
from minigraph.ops.loss import CrossEntropy, CrossEntropyBackward
from minigraph.ops.reduction import Sum
from minigraph.ops.shape import BroadcastTo, broadcast_to
from minigraph.ops.softmax import LogSoftmax
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.facts import filled_with


@dataclass(frozen=True, eq=False)
class _Loss:
    """The nodes of a cross entropy, or of its gradient, before fusion.

    logs    log(softmax(logits))
    labels  the labels, whose one-hot vectors pick one logarithm in each row
    dy      the gradient with respect to these logarithms, which may need broadcasting to [..., 1];
            None in a cross entropy
    inner   the nodes that the fused op replaces, besides the last one
    """

    logs: Node
    labels: Node
    dy: Node | None
    inner: tuple[Node, ...]


def fuse_cross_entropy(graph: Graph, notes: Notes) -> Graph:
    """Return the graph with the cross entropy of a softmax made one op, and its gradient another.

    Both are left alone where anything else reads the logarithms of the softmax.
    """
    users = graph.users()
    readers: dict[Node, dict[Node, _Loss]] = {}  # of the logarithms
    for node in graph:
        loss = _loss(node)
        if loss:
            readers.setdefault(loss.logs, {})[node] = loss
    fused: dict[Node, tuple[Node]] = {}
    for losses in readers.values():
        inner = {x for loss in losses.values() for x in loss.inner}
        known = inner.union(losses)
        if inner.isdisjoint(graph.outputs) and all(known.issuperset(users[x]) for x in inner):
            for node, loss in losses.items():
                with in_place_of(node):
                    fused[node] = (_fused(loss),)
                notes.fired[fused[node][0].name] += 1
    return graph.substitute(fused)


def _loss(node: Node) -> _Loss | None:
    """Return the loss or gradient that ends with `node`, as `ops` and `mg.grad` build it."""
    match node:
        case Node(
            op=Negative(),
            inputs=[
                Node(op=Sum(), inputs=[Node(op=Where(), inputs=[_, logs, _]) as picked]) as total
            ],
        ) if _picks(picked, total, logs):
            return _Loss(logs, picked.inputs[0].inputs[0], None, (logs, picked, total))
        case Node(
            op=Subtract(),
            inputs=[
                Node(op=Where(), inputs=[_, dy, _]) as picked,
                Node(
                    op=Multiply(),
                    inputs=[Node(op=Exp(), inputs=[logs]) as power, Node(op=Sum()) as total]
                    | [Node(op=Sum()) as total, Node(op=Exp(), inputs=[logs]) as power],
                ) as product,
            ],
        ) if total.inputs[0] is picked and _picks(picked, total, logs):
            dy = dy.inputs[0] if isinstance(dy.op, BroadcastTo) else dy
            if not dy.ndim or dy.shape[-1] == 1:
                inner = (logs, picked, total, power, product)
                return _Loss(logs, picked.inputs[0].inputs[0], dy, inner)
    return None


def _picks(picked: Node, total: Node, logs: Node) -> bool:
    """Whether `picked` keeps one element of each row of `logs`, and `total` sums each row up."""
    chosen, _, zero = picked.inputs
    last = logs.ndim - 1
    return (
        logs.op == LogSoftmax(last)
        and total.op == Sum((last,))
        and isinstance(chosen.op, OneHot)
        and chosen.shape == picked.shape == logs.shape
        and filled_with(zero) == 0
    )


def _fused(loss: _Loss) -> Node:
    logits, labels = loss.logs.inputs[0], loss.labels
    if loss.dy is None:
        return CrossEntropy()(logits, labels)
    dy = broadcast_to(_negated(loss.dy), (*labels.shape, 1))
    return CrossEntropyBackward()(dy, logits, labels)


def _negated(x: Node) -> Node:
    if isinstance(x.op, Negative):
        return x.inputs[0]
    return constant(-x.op.value) if isinstance(x.op, Constant) else negative(x)

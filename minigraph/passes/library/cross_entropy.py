"""Library fusion of the softmax and the cross entropy of its logarithms.

The gradient is told from the ops of the backward pass alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.graph import Constant, Graph, Node, constant
from minigraph.ops import negative
from minigraph.ops.arithmetic import Multiply, Negative, Subtract
from minigraph.ops.comparison import Where
from minigraph.ops.exponential import Exp
from minigraph.ops.indexing import OneHot
from minigraph.ops.loss import CrossEntropy, CrossEntropyBackward
from minigraph.ops.normalization import LogSoftmax
from minigraph.ops.reduction import Sum
from minigraph.ops.shape import BroadcastTo, broadcast_to
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.fact import filled_with, has


@dataclass(frozen=True, eq=False)
class _Loss:
    """A cross entropy, or its gradient, as it was written.

    logs    log(softmax(logits))
    labels  of which a one-hot vector picks one logarithm in each row
    dy      of a gradient: that of what was picked, perhaps still to be broadcast to [..., 1]
    inner   the nodes that the fused op does not need
    """

    logs: Node
    labels: Node
    dy: Node | None
    inner: tuple[Node, ...]


def fuse_cross_entropy(graph: Graph, notes: Notes) -> Graph:
    """Return the graph with the cross entropy of a softmax made one op, and its gradient another.

    All readers of the softmax's logarithms have to be among these.
    """
    if not has(graph, LogSoftmax):
        return graph
    users = graph.users()
    readers: dict[Node, dict[Node, _Loss]] = {}  # of the logarithms
    for node in graph:
        loss = _loss(node)
        if loss:
            readers.setdefault(loss.logs, {})[node] = loss
    roots: set[Node] = set()
    for losses in readers.values():
        inner = {x for loss in losses.values() for x in loss.inner}
        known = inner.union(losses)
        if inner.isdisjoint(graph.outputs) and all(known.issuperset(users[x]) for x in inner):
            roots.update(losses)

    def rewrite(old: Node, inputs: tuple[Node, ...]) -> Node:
        node = old.replace(inputs)
        loss = _loss(node) if old in roots else None
        if loss is None:
            return node
        fused = _fused(loss)
        notes.fired[fused.name] += 1
        return fused

    return graph.map(rewrite)


def _loss(node: Node) -> _Loss | None:
    """What ends with `node`, written as `ops.cross_entropy` and `mg.grad` write it."""
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
    """Whether a one-hot choice has one element in each row of `logs`, and `total` is their sums."""
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
    """Return -x without another op where that can be had."""
    if isinstance(x.op, Negative):
        return x.inputs[0]
    return constant(-x.op.value) if isinstance(x.op, Constant) else negative(x)

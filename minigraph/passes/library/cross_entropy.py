"""Library fusion of the logarithm of a softmax and the cross entropy that reads it.

The gradient is recognised by the ops of the backward pass alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.graph import Constant, Graph, Node, constant, in_place_of
from minigraph.ops import negative
from minigraph.ops.arithmetic import Multiply, Negative, Subtract
from minigraph.ops.exponential import Exp
from minigraph.ops.indexing import AddAlong, TakeAlong
from minigraph.ops.loss import CrossEntropy, CrossEntropyBackward
from minigraph.ops.reduction import Sum
from minigraph.ops.shape import BroadcastTo, Reshape, broadcast_to, squeeze
from minigraph.ops.softmax import LogSoftmax
from minigraph.passes.notes import Notes


@dataclass(frozen=True, eq=False)
class _Loss:
    """The nodes of a cross entropy, or of its gradient, before fusion.

    logs    log(softmax(logits))
    labels  the labels [..., 1], which pick one logarithm in each row
    dy      the gradient with respect to these logarithms; None in a cross entropy
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
            op=Negative(), inputs=[Node(op=TakeAlong(), inputs=[logs, labels]) as picked]
        ) if picked.op == TakeAlong(logs.ndim - 1, labels=True) and _is_last(logs):
            return _Loss(logs, labels, None, (logs, picked))
        case Node(
            op=Subtract(),
            inputs=[
                Node(op=AddAlong(), inputs=[dy, labels]) as spread,
                Node(
                    op=Multiply(),
                    inputs=[Node(op=Exp(), inputs=[logs]) as power, Node(op=Sum()) as total]
                    | [Node(op=Sum()) as total, Node(op=Exp(), inputs=[logs]) as power],
                ) as product,
            ],
        ) if (
            spread.op == AddAlong(logs.ndim - 1, logs.shape[-1], labels=True)
            and total.op == Sum((logs.ndim - 1,))
            and total.inputs[0] is spread
            and _is_last(logs)
        ):
            return _Loss(logs, labels, dy, (logs, spread, total, power, product))
    return None


def _is_last(logs: Node) -> bool:
    return logs.op == LogSoftmax(logs.ndim - 1)


def _fused(loss: _Loss) -> Node:
    (logits,), labels = loss.logs.inputs, loss.labels
    before = labels.inputs[0] if isinstance(labels.op, Reshape) else labels
    labels = before if before.shape == labels.shape[:-1] else squeeze(labels, -1)
    if loss.dy is None:
        return CrossEntropy()(logits, labels)
    return CrossEntropyBackward()(_negated(loss.dy), logits, labels)


def _negated(x: Node) -> Node:
    if isinstance(x.op, Negative):
        return x.inputs[0]
    if isinstance(x.op, BroadcastTo):
        return broadcast_to(_negated(x.inputs[0]), x.shape)
    return constant(-x.op.value) if isinstance(x.op, Constant) else negative(x)

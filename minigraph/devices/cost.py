"""The cost of a program's steps by their shapes: bytes moved, and operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from minigraph.devices.problem import operations, product_of
from minigraph.graph import GraphOp, Loop, Node
from minigraph.jit.fused import Fused, HorizontalFusion
from minigraph.program import Buffer, Step, View


class StepCost(NamedTuple):
    """The least number of bytes that a step moves, and floating-point operations.

    A convolution or product counts its multiplications and additions, any other op one operation
    for each element.
    """

    bytes: int
    flops: int


def cost_of(step: Step) -> StepCost:
    """Return the cost of one run of a step; for a loop, of all runs of its body."""
    if step.kernel.body:
        assert isinstance(step.node.op, Loop)
        costs = [cost_of(inner) for inner in step.kernel.body.steps]
        length = step.node.op.length
        return StepCost(length * sum(c.bytes for c in costs), length * sum(c.flops for c in costs))
    nbytes = _bytes(step.inputs) + _bytes(step.outputs)
    return StepCost(nbytes, _flops(step.node))


def _bytes(views: Sequence[View]) -> int:
    """Return the bytes of views; parts of a buffer are not counted twice."""
    sizes: Counter[Buffer] = Counter()
    for view in {*views}:
        sizes[view.buffer] += view.spec.nbytes
    return sum(min(buffer.nbytes, size) for buffer, size in sizes.items())


def _flops(node: Node) -> int:
    if product_of(node):
        return operations(node)
    if isinstance(node.op, GraphOp):
        runs = node.op.length if isinstance(node.op, Loop) else 1
        return runs * sum(map(_flops, (each for each in node.op.graph if each.inputs)))
    if isinstance(node.op, HorizontalFusion):
        return sum(
            sum(map(_elements, (each for each in op.graph if each.inputs)))
            if isinstance(op, Fused)
            else max(x.size for x in inputs)
            for op, inputs in node.op.groups(node.inputs)
        )
    return _elements(node)


def _elements(node: Node) -> int:
    return max(spec.size for spec in (*node.specs, *(s for x in node.inputs for s in x.specs)))

"""Where the operands of ops that are made of copies lie in the result."""

from __future__ import annotations

import itertools

from minigraph.graph import Node, Shape
from minigraph.ops.shape import Concat, Pad


def placements(node: Node) -> list[tuple[Shape, int]]:
    """Return the strides and the offset, in bytes, of each operand of a Pad or Concat."""
    steps = node.spec.strides
    if isinstance(node.op, Pad):
        apart = tuple(s * (i + 1) for s, i in zip(steps, node.op.interior, strict=True))
        return [(apart, sum(s * low for s, low in zip(steps, node.op.low, strict=True)))]
    assert isinstance(node.op, Concat)
    sizes = [steps[node.op.axis] * x.shape[node.op.axis] for x in node.inputs]
    return [(steps, offset) for offset in itertools.accumulate(sizes[:-1], initial=0)]

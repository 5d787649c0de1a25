"""Computing before broadcasting: a value that is repeated is computed once.

Gradients of sums and means are numbers that are broadcast to the shape of what was summed, and so
are their sums, products and quotients.
"""

from __future__ import annotations

import math
import operator

from minigraph.graph import Constant, Node, constant
from minigraph.ops.elementwise import Elementwise, broadcast_shapes
from minigraph.ops.shape import BroadcastTo, broadcast_to
from minigraph.passes.rewrite.fact import filled_with
from minigraph.passes.rewrite.rule import rule_on, rules_in


@rule_on(Elementwise)
def broadcast_later(node: Node) -> Node | None:
    """Apply an op to what its operands repeat, and repeat the result if it is smaller now."""
    operands = [_unrepeated(x) for x in node.inputs]
    if all(map(operator.is_, operands, node.inputs)):
        return None
    shape = broadcast_shapes(*(x.shape for x in operands))
    if shape != node.shape and math.prod(shape) >= node.size:
        return None
    return broadcast_to(node.op(*operands), node.shape)


def _unrepeated(x: Node) -> Node:
    """Return the smallest expression that broadcasts to x."""
    while isinstance(x.op, BroadcastTo):
        (x,) = x.inputs
    if isinstance(x.op, Constant) and x.ndim:
        number = filled_with(x)
        return x if number is None else constant(number, x.dtype)
    return x


RULES = rules_in(globals())

"""Average pooling without padding: means, and for windows side by side a broadcast back."""

from __future__ import annotations

from minigraph.graph import Graph, Node, Op, Shape, Spec, placeholders
from minigraph.jit.fused import Fused
from minigraph.ops.elementwise import kind, widen
from minigraph.ops.layout import LaidOut
from minigraph.ops.pooling import AvgPool2d, AvgPool2dBackward
from minigraph.ops.reduction import Sum
from minigraph.ops.shape import BroadcastTo


def averages(node: Node, strides: Shape) -> tuple[Op, Spec, Shape] | None:
    """Return a node as an op that can be generated, and how the op sees the input.

    The rows and columns of a window are axes of their own there.  None for other nodes, for windows
    that reach into padding, and for the gradient of those that overlap or leave something out.

    strides  of the input, in bytes
    """
    op = node.op.plain if isinstance(node.op, LaidOut) else node.op
    if not isinstance(op, AvgPool2d | AvgPool2dBackward) or node.inputs[0].ndim != node.ndim:
        return None
    (x,), backward = node.inputs, isinstance(op, AvgPool2dBackward)
    pool = op.pool if isinstance(op, AvgPool2dBackward) else op
    (high, wide), (down, across) = window, stride = pool.pooling.window, pool.pooling.stride
    (n, c, h, w, *lanes), (rows, columns) = (
        (node if backward else x).shape,
        (x if backward else node).shape[2:4],
    )
    apart = stride != window or h % high or w % wide
    if (backward and apart) or any(map(any, pool.pooling.padding)) or kind(node.dtype) != "f":
        return None
    split = (n, c, rows, high, columns, wide, *lanes)
    image, channel, row, pixel, *lane = strides
    if backward:
        given = Spec((n, c, rows, 1, columns, 1, *lanes), x.dtype)
        steps = (image, channel, row, 0, pixel, 0, *lane)
    else:
        given = Spec(split, x.dtype)
        steps = (image, channel, row * down, row, pixel * across, pixel, *lane)
    (stand_in,) = xs = placeholders([given])
    total = widen(stand_in)
    total = BroadcastTo(split)(total) if backward else Sum((3, 5))(total)
    return Fused(Graph(xs, ((total / float(high * wide)).astype(x.dtype),))), given, steps

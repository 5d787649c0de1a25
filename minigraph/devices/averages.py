"""Average pooling of windows that lie side by side: a mean, and a broadcast for its gradient."""

from __future__ import annotations

import numpy as np

from minigraph.graph import Graph, Node, Op, Shape, Spec, stand_ins
from minigraph.jit.fused import Fused
from minigraph.ops.layout import LaidOut
from minigraph.ops.pooling import AvgPool2d, AvgPool2dBackward
from minigraph.ops.reduction import Sum
from minigraph.ops.shape import BroadcastTo


def averages(node: Node, strides: Shape) -> tuple[Op, Spec, Shape] | None:
    """Return a node as an op that can be generated, and how the op sees the input.

    The rows and columns of a window are axes of their own there.  None for other nodes, and for
    windows that overlap, leave something out, or reach into padding.

    strides  of the input, in bytes
    """
    op = node.op.plain if isinstance(node.op, LaidOut) else node.op
    if not isinstance(op, AvgPool2d | AvgPool2dBackward) or node.inputs[0].ndim != node.ndim:
        return None
    (x,), backward = node.inputs, isinstance(op, AvgPool2dBackward)
    pool = op.pool if isinstance(op, AvgPool2dBackward) else op
    (high, wide), (n, c, h, w, *lanes) = pool.pooling.window, (node if backward else x).shape
    if (
        pool.pooling.stride != (high, wide)
        or any(map(any, pool.pooling.padding))
        or h % high
        or w % wide
        or node.dtype not in (np.float32, np.float64)
    ):
        return None
    split = (n, c, h // high, high, w // wide, wide, *lanes)
    image, channel, row, pixel, *lane = strides
    if backward:
        given = Spec((n, c, h // high, 1, w // wide, 1, *lanes), x.dtype)
        steps = (image, channel, row, 0, pixel, 0, *lane)
    else:
        given = Spec(split, x.dtype)
        steps = (image, channel, row * high, row, pixel * wide, pixel, *lane)
    xs = stand_ins([given])
    total = BroadcastTo(split)(*xs) if backward else Sum((3, 5))(*xs)
    return Fused(Graph(xs, (total / float(high * wide),))), given, steps

"""The generated kernels that compute a node on any device, and the operands of each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minigraph.graph import Copy, Graph, Node, Op, Shape, Spec, placeholders
from minigraph.jit.domain import NotFusible
from minigraph.jit.expression import literal
from minigraph.jit.fused import Fused, HorizontalFusion
from minigraph.jit.kernel import SpecialisedKernel, kernel_of
from minigraph.ops.elementwise import Elementwise, kind, widen
from minigraph.ops.joining import Concat
from minigraph.ops.layout import LaidOut, Reorder, unpacked
from minigraph.ops.pooling import AvgPool2d, AvgPool2dBackward
from minigraph.ops.reduction import Reduction, Sum
from minigraph.ops.shape import BroadcastTo, Reshape
from minigraph.ops.slicing import Pad

# Besides composed ops, and poolings of some windows.
GENERATED = (Elementwise, Reduction, Fused, HorizontalFusion, Copy, Pad, Concat, Reorder, Reshape)


@dataclass(frozen=True)
class KernelPart:
    """A generated kernel and which of the node's operands it has.

    offset  bytes by which its only output begins later than the node's does
    """

    kernel: SpecialisedKernel
    ins: slice
    outs: slice
    offset: int = 0


@dataclass(frozen=True)
class KernelParts:
    """The independent kernels that compute a node.

    fill     initial value of the output, as C text
    inplace  for each input, the outputs that may overwrite it
    """

    parts: list[KernelPart]
    inplace: Sequence[Sequence[int]]
    fill: str = ""


def can_be_generated(op: Op) -> bool:
    """Whether kernels of an op are generated, for some shapes."""
    return isinstance(op, GENERATED) or op.composed


def kernel_parts(node: Node, strides: Sequence[Shape], short: int = 0) -> KernelParts | None:
    """Return the kernels for `node`, whose inputs have these strides; None if there are none.

    short  length of rows, at most, that are computed several at a time
    """
    try:
        return _parts(node, strides, short)
    except NotFusible:
        return None


def _parts(node: Node, strides: Sequence[Shape], short: int) -> KernelParts | None:
    inputs = tuple(x.spec for x in node.inputs)
    match node.op:
        case HorizontalFusion():
            return _independent(node.op, node, strides, short)
        case Pad() | Concat():
            return _copies(node, strides)
        case Reshape():  # of a strided view
            op: Op = Copy()
        case Reorder() | AvgPool2d() | AvgPool2dBackward() | LaidOut():
            viewed = reordered_view if isinstance(node.op, Reorder) else _averages
            copy = viewed(node, strides[0])
            if copy is None:
                return None
            op, inputs, strides = copy[0], (copy[1],), (copy[2],)
        case _ if can_be_generated(node.op):
            op = node.op
        case _:
            return None
    kernel = kernel_of(op, inputs, tuple(strides), short=short)
    part = KernelPart(kernel, slice(len(node.inputs)), slice(len(node.specs)))
    return KernelParts([part], kernel.inplace)


def _independent(
    op: HorizontalFusion, node: Node, strides: Sequence[Shape], short: int
) -> KernelParts:
    """Independent small ops in one launch."""
    parts: list[KernelPart] = []
    inplace: list[tuple[int, ...]] = []
    first_in = first_out = 0
    for each, inputs in op.groups(node.inputs):
        ins = slice(first_in, first_in + len(inputs))
        kernel = kernel_of(each, tuple(x.spec for x in inputs), tuple(strides[ins]), short=short)
        outs = slice(first_out, first_out + len(kernel.pattern.stores))
        parts.append(KernelPart(kernel, ins, outs))
        inplace += [tuple(first_out + i for i in outputs) for outputs in kernel.inplace]
        first_in, first_out = ins.stop, outs.stop
    return KernelParts(parts, inplace)


# ---------------------------------------------------------------- ops that are others of views


def _averages(node: Node, strides: Shape) -> tuple[Op, Spec, Shape] | None:
    """Return average pooling as an op that can be generated, and how the op sees the input.

    That is a mean, and for the gradient a broadcast.  The rows and columns of a window are axes of
    their own there.  None for other nodes, for windows that reach into padding, and for the
    gradient of those that overlap or leave something out.

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


def reordered_view(node: Node, strides: Shape) -> tuple[Op, Spec, Shape] | None:
    """Return a reorder as a copy of images whose axes are in the result's order.

    An axis of larger blocks is divided in two.  None if neither number of lanes is a multiple of
    the other.
    """
    (x,) = node.inputs
    n, c, h, w = unpacked(x.shape)
    before, after = ((*each.shape[4:], 1)[0] for each in (x, node))
    most = max(before, after)
    if most % before or most % after:
        return None
    image, block, row, pixel, *lane = strides
    one = lane[0] if lane else block  # from a channel to the next, within a block
    shape: Shape = (n, c // before, before // after, h, w, after)
    steps: Shape = (image, block, one * after, row, pixel, one)
    if after > before:
        shape = (n, c // after, h, w, after // before, before)
        steps = (image, block * (after // before), row, pixel, block, one)
    return Copy(), Spec(shape, x.dtype), steps


def _copies(node: Node, strides: Sequence[Shape]) -> KernelParts:
    fill = ""
    if isinstance(node.op, Pad):
        fill = literal(np.array(node.op.value).astype(node.dtype)[()])
    parts = []
    for i, (x, s, (target, offset)) in enumerate(
        zip(node.inputs, strides, placements(node), strict=True)
    ):
        if not x.size:
            continue
        kernel = kernel_of(Copy(), (x.spec,), (s,), target)
        parts.append(KernelPart(kernel, slice(i, i + 1), slice(1), offset))
    return KernelParts(parts, ((),) * len(node.inputs), fill)


def placements(node: Node) -> list[tuple[Shape, int]]:
    """Return the strides and the offset, in bytes, of each operand of a Pad or Concat."""
    steps = node.spec.strides
    if isinstance(node.op, Pad):
        strides = tuple(s * (i + 1) for s, i in zip(steps, node.op.interior, strict=True))
        return [(strides, sum(s * low for s, low in zip(steps, node.op.low, strict=True)))]
    assert isinstance(node.op, Concat)
    sizes = [steps[node.op.axis] * x.shape[node.op.axis] for x in node.inputs]
    return [(steps, offset) for offset in itertools.accumulate(sizes[:-1], initial=0)]

"""The generated kernels that compute a node on any device, and the operands of each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigraph.graph import Constant, Copy, Graph, Node, Op, Shape, Spec, placeholders
from minigraph.jit.domain import NotFusible
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
    """A generated kernel, and its operands among those of the node.

    offset  bytes from the start of the node's output to that of the kernel's only output
    """

    kernel: SpecialisedKernel
    ins: slice
    outs: slice
    offset: int = 0


@dataclass(frozen=True)
class KernelParts:
    """The kernels that compute a node.

    inplace  outputs that may overwrite each input
    ordered  whether the first kernel has to be complete before the others, which are independent
    """

    parts: list[KernelPart]
    inplace: Sequence[Sequence[int]]
    ordered: bool = False


def can_be_generated(op: Op) -> bool:
    """Whether kernels of an op are generated, for some shapes."""
    return isinstance(op, GENERATED) or op.composed


def kernel_parts(node: Node, strides: Sequence[Shape], short_row: int = 0) -> KernelParts | None:
    """Return the kernels for `node`, whose inputs have these strides; None without kernels.

    short_row  largest number of elements of rows that are computed side by side
    """
    try:
        return _parts(node, strides, short_row)
    except NotFusible:
        return None


def _parts(node: Node, strides: Sequence[Shape], short_row: int) -> KernelParts | None:
    inputs = tuple(x.spec for x in node.inputs)
    match node.op:
        case HorizontalFusion():
            return _independent(node.op, node, strides, short_row)
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
    kernel = kernel_of(op, inputs, tuple(strides), short_row=short_row)
    part = KernelPart(kernel, slice(len(node.inputs)), slice(len(node.specs)))
    return KernelParts([part], kernel.inplace)


def _independent(
    op: HorizontalFusion, node: Node, strides: Sequence[Shape], short_row: int
) -> KernelParts:
    """Independent small ops in one launch."""
    parts: list[KernelPart] = []
    inplace: list[tuple[int, ...]] = []
    first_in = first_out = 0
    for part_op, inputs in op.groups(node.inputs):
        ins = slice(first_in, first_in + len(inputs))
        kernel = kernel_of(
            part_op, tuple(x.spec for x in inputs), tuple(strides[ins]), short_row=short_row
        )
        outs = slice(first_out, first_out + len(kernel.pattern.stores))
        parts.append(KernelPart(kernel, ins, outs))
        inplace += [tuple(first_out + i for i in outputs) for outputs in kernel.inplace]
        first_in, first_out = ins.stop, outs.stop
    return KernelParts(parts, inplace)


# ---------------------------------------------------------------- ops that are other ops of views


def _averages(node: Node, strides: Shape) -> tuple[Op, Spec, Shape] | None:
    """Return average pooling as a generated op, with the spec and strides of its view of the input.

    The op is a mean, and for the gradient a broadcast.  In the view, the rows and columns of a
    window are separate axes.  None for other nodes, for windows that reach into padding, and for
    the gradient of windows that overlap or do not cover the image.

    strides  strides of the input, in bytes
    """
    op = node.op.plain if isinstance(node.op, LaidOut) else node.op
    if not isinstance(op, AvgPool2d | AvgPool2dBackward) or node.inputs[0].ndim != node.ndim:
        return None
    (x,), backward = node.inputs, isinstance(op, AvgPool2dBackward)
    pool = op.pool if isinstance(op, AvgPool2dBackward) else op
    window, stride = pool.pooling.window, pool.pooling.stride
    (n, c, h, w, *lanes), (rows, columns) = (
        (node if backward else x).shape,
        (x if backward else node).shape[2:4],
    )
    is_uneven = stride != window or h % window[0] or w % window[1]
    if (backward and is_uneven) or any(map(any, pool.pooling.padding)) or kind(node.dtype) != "f":
        return None
    split = (n, c, rows, window[0], columns, window[1], *lanes)
    image, channel, row, pixel, *lane = strides
    if backward:
        view = Spec((n, c, rows, 1, columns, 1, *lanes), x.dtype)
        steps = (image, channel, row, 0, pixel, 0, *lane)
    else:
        view = Spec(split, x.dtype)
        steps = (image, channel, row * stride[0], row, pixel * stride[1], pixel, *lane)
    (operand,) = xs = placeholders([view])
    total = widen(operand)
    total = BroadcastTo(split)(total) if backward else Sum((3, 5))(total)
    mean = (total / float(math.prod(window))).astype(x.dtype)
    return Fused(Graph(xs, (mean,))), view, steps


def reordered_view(node: Node, strides: Shape) -> tuple[Op, Spec, Shape] | None:
    """Return a reorder as a copy of images whose axes are in the result's order.

    The axis of the larger blocks is divided in two.  None if neither number of lanes is a multiple
    of the other.
    """
    (x,) = node.inputs
    n, c, h, w = unpacked(x.shape)
    lanes_in, lanes_out = ((*operand.shape[4:], 1)[0] for operand in (x, node))
    larger = max(lanes_in, lanes_out)
    if larger % lanes_in or larger % lanes_out:
        return None
    image, block, row, pixel, *lane = strides
    lane_stride = lane[0] if lane else block  # from a channel to the next, within a block
    shape: Shape = (n, c // lanes_in, lanes_in // lanes_out, h, w, lanes_out)
    steps: Shape = (image, block, lane_stride * lanes_out, row, pixel, lane_stride)
    if lanes_out > lanes_in:
        shape = (n, c // lanes_out, h, w, lanes_out // lanes_in, lanes_in)
        steps = (image, block * (lanes_out // lanes_in), row, pixel, block, lane_stride)
    return Copy(), Spec(shape, x.dtype), steps


def _copies(node: Node, strides: Sequence[Shape]) -> KernelParts:
    parts = [filled(node.spec, node.op.value)] if isinstance(node.op, Pad) else []
    for i, (x, s, (target, offset)) in enumerate(
        zip(node.inputs, strides, placements(node), strict=True)
    ):
        if not x.size:
            continue
        kernel = kernel_of(Copy(), (x.spec,), (s,), target)
        parts.append(KernelPart(kernel, slice(i, i + 1), slice(1), offset))
    return KernelParts(parts, ((),) * len(node.inputs), isinstance(node.op, Pad))


def filled(y: Spec, value: Any) -> KernelPart:
    """Return the kernel that fills an output of a node with a value, and reads no input."""
    number = Constant(np.array(value).astype(y.dtype))()
    kernel = kernel_of(Fused(Graph((), (BroadcastTo(y.shape)(number),))), (), ())
    return KernelPart(kernel, slice(0), slice(1))


def placements(node: Node) -> list[tuple[Shape, int]]:
    """Return the strides and the offset, in bytes, of each operand of a Pad or Concat."""
    steps = node.spec.strides
    if isinstance(node.op, Pad):
        strides = tuple(s * (i + 1) for s, i in zip(steps, node.op.interior, strict=True))
        return [(strides, sum(s * low for s, low in zip(steps, node.op.low, strict=True)))]
    assert isinstance(node.op, Concat)
    sizes = [steps[node.op.axis] * x.shape[node.op.axis] for x in node.inputs]
    return [(steps, offset) for offset in itertools.accumulate(sizes[:-1], initial=0)]

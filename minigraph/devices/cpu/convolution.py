"""Convolutions of nchw images in C, of every dtype: sums of products of gathered panels.

Pixels with the same taps of the window are computed together, so padding is neither read nor
multiplied.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from minigraph.devices.cpu.kernel import NativeKernel
from minigraph.devices.cpu.onednn import F32
from minigraph.devices.cpu.product import Batch, Contraction, contraction_kernel
from minigraph.devices.problem import conv_of
from minigraph.graph import Node, Shape
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut

CONVOLUTIONS = (Conv2d, Conv2dBackwardData, Conv2dBackwardWeights)
MANY_CHANNELS = 256  # whose weights exceed the cache


class PixelSet(NamedTuple):
    """Pixels of a result, along one axis, with the same taps.

    first, step, size    of the pixels
    tap, tap_step, taps  first tap, distance to the next one, and number of taps
    start, start_step    pixel that `first` reads at the first tap, and distance to the next tap's
    """

    first: int
    step: int
    size: int
    tap: int
    tap_step: int
    taps: int
    start: int
    start_step: int


class Axis(NamedTuple):
    """One axis of a convolution: sizes of its images, `before` and `behind`, and its window."""

    before: int
    behind: int
    taps: int
    stride: int
    padding: int
    dilation: int

    def input_pixels(self, pixel: int) -> list[tuple[int, int]]:
        """Return the taps of a pixel of the output, each with the input pixel that it reads."""
        first = pixel * self.stride - self.padding
        places = [(tap, first + tap * self.dilation) for tap in range(self.taps)]
        return [(tap, place) for tap, place in places if 0 <= place < self.before]

    def output_pixels(self, pixel: int) -> list[tuple[int, int]]:
        """Return the taps that read a pixel of the input, each with the output pixel."""
        spans = [(tap, pixel + self.padding - tap * self.dilation) for tap in range(self.taps)]
        return [
            (tap, span // self.stride)
            for tap, span in spans
            if span % self.stride == 0 and 0 <= span // self.stride < self.behind
        ]

    def sets(self, backward: bool) -> list[PixelSet]:
        """Return all pixels of the output, or, for the gradient, of the input."""
        period = self.stride if backward else 1
        size = self.before if backward else self.behind
        found = []
        for residue in range(min(period, size)):
            pixels = range(residue, size, period)
            each = (
                (p, self.output_pixels(p) if backward else self.input_pixels(p)) for p in pixels
            )
            for taps, group in itertools.groupby(each, lambda pair: [tap for tap, _ in pair[1]]):
                members = list(group)
                first, met = members[0]
                steps = (met[1][0] - met[0][0], met[1][1] - met[0][1]) if len(met) > 1 else (0, 0)
                tap, start = met[0] if met else (0, 0)
                spaced = first, period, len(members)
                found.append(PixelSet(*spaced, tap, steps[0], len(taps), start, steps[1]))
        return found


class LaidOutConvolution(NamedTuple):
    """A convolution or gradient of images in blocks, or of few channels in nchw.

    conv      the convolution
    window    sides of its window
    read      shape of the images that it reads, in their layout
    others    shape of the images that it writes, or of dy for the weights' gradient
    lanes     of a block of `others`
    lanes_in  of a block of `read`: 1 in nchw
    """

    conv: Conv2d
    window: Shape
    read: Shape
    others: Shape
    lanes: int
    lanes_in: int


def laid_out_convolution(node: Node) -> LaidOutConvolution | None:
    """Return the float32 convolution without groups that `node` is, or None."""
    op = node.op
    if not isinstance(op, LaidOut) or not isinstance(op.plain, CONVOLUTIONS):
        return None
    conv, (first, second, *_) = conv_of(op.plain), (x.shape for x in node.inputs)
    if isinstance(op.plain, Conv2dBackwardWeights):
        form = LaidOutConvolution(conv, node.shape[2:], second, first, *op.lanes_in)
    else:
        lanes = op.lanes_out[0], op.lanes_in[0]
        form = LaidOutConvolution(conv, second[2:], first, node.shape, *lanes)
    specs = node.spec, *(x.spec for x in node.inputs)
    supported = conv.groups == 1 and all(spec.dtype == F32 and spec.size for spec in specs)
    return form if supported else None


def convolution_kernel(node: Node, threads: int) -> NativeKernel:
    """Return the kernel of a convolution, or of one of its gradients, of images in nchw."""
    op = node.op
    if isinstance(op, Conv2dBackwardWeights):
        conv, (dy, x), w = op.conv, (each.shape for each in node.inputs), node.shape
        batches = _groups(conv, math.prod(dy[1:]), math.prod(x[1:]), math.prod(w))
        return contraction_kernel(node, (0, 1), _weights(conv, x, dy, w), batches, (0, 0), threads)
    conv = conv_of(op)
    read, w = (each.shape for each in node.inputs[:2])
    sizes = math.prod(w), math.prod(read[1:]), math.prod(node.shape[1:])
    batches = _groups(conv, *sizes, bias=w[0])
    contractions = _images(conv, read, w, node.shape, isinstance(op, Conv2dBackwardData))
    return contraction_kernel(node, (1, 0), [contractions], batches, (1, 0), threads)


def _groups(conv: Conv2d, x: int, y: int, z: int, bias: int = 0) -> list[Batch]:
    """Return the axis of groups, which divide these elements of each operand evenly."""
    g = conv.groups
    return [Batch(g, x // g, y // g, z // g, bias // g)] if g > 1 else []


def axes_of(conv: Conv2d, before: Shape, behind: Shape, window: Shape) -> list[Axis]:
    each = (before[2:4], behind[2:4], window, conv.stride, conv.padding, conv.dilation)
    return [Axis(*axis) for axis in zip(*each, strict=True)]


def _images(
    conv: Conv2d, read: Shape, w: Shape, written: Shape, backward: bool
) -> list[Contraction]:
    """Return the contractions of a convolution, or of the gradient for its input."""
    (n, _, *read_sides), (_, _, *written_sides), (k, c, r, s) = read, written, w
    (outs, ins), taps = (k // conv.groups, c), r * s
    before, behind = (written, read) if backward else (read, written)
    sets = [axis.sets(backward) for axis in axes_of(conv, before, behind, (r, s))]
    paces = (1, 1) if backward else conv.stride
    across = [taps, ins * taps] if backward else [ins * taps, taps]  # rows of w, and its sums
    rows, added = (ins, outs) if backward else (outs, ins)

    def contraction(down: PixelSet, right: PixelSet) -> Contraction:
        return Contraction(
            rows,
            (n, down.size, right.size),
            (added, down.taps, right.taps),
            across[0],
            (across[1], down.tap_step * s, right.tap_step),
            (math.prod(read_sides), down.start_step * read_sides[1], right.start_step),
            (math.prod(read[1:]), paces[0] * read_sides[1], paces[1]),
            math.prod(written_sides),
            (math.prod(written[1:]), down.step * written_sides[1], right.step),
            down.tap * s + right.tap,
            down.start * read_sides[1] + right.start,
            down.first * written_sides[1] + right.first,
        )

    return list(itertools.starmap(contraction, itertools.product(*sets)))


def _weights(conv: Conv2d, x: Shape, dy: Shape, w: Shape) -> list[list[Contraction]]:
    """Return the contractions of a weights' gradient, by calls; those of later calls add to it.

    With many channels each tap is a contraction.  With few, whose weights stay in the cache, sets
    of pixels add their products for all taps.
    """
    (n, _, *x_sides), (k, c, r, s), (_, _, *dy_sides) = x, w, dy
    rows, taps = k // conv.groups, r * s
    axes = axes_of(conv, x, dy, (r, s))

    def contraction(down: PixelSet, right: PixelSet) -> Contraction:
        return Contraction(
            rows,
            (c, down.taps, right.taps),
            (n, down.size, right.size),
            math.prod(dy_sides),
            (math.prod(dy[1:]), dy_sides[1], 1),
            (math.prod(x[1:]), conv.stride[0] * x_sides[1], conv.stride[1]),
            (math.prod(x_sides), down.start_step * x_sides[1], right.start_step),
            c * taps,
            (taps, down.tap_step * s, right.tap_step),
            down.first * dy_sides[1] + right.first,
            down.start * x_sides[1] + right.start,
            down.tap * s + right.tap,
        )

    if c >= MANY_CHANNELS:
        return [[*itertools.starmap(contraction, itertools.product(*map(_each_tap, axes)))]]
    none, whole = (0, 0, 0), (1, 1, c * taps)
    zeros = Contraction(rows, whole, none, 0, none, none, none, c * taps, (0, 0, 1))
    sets = itertools.product(*(axis.sets(False) for axis in axes))
    return [[zeros], *([contraction(down, right)] for down, right in sets)]


def _each_tap(axis: Axis) -> list[PixelSet]:
    """Return the pixels that each tap reads."""
    found = []
    for tap in range(axis.taps):
        alone = axis._replace(taps=1, padding=axis.padding - tap * axis.dilation)
        met = [each for each in alone.sets(False) if each.taps]
        found += [each._replace(tap=tap) for each in met] or [PixelSet(0, 1, 0, tap, 0, 1, 0, 0)]
    return found

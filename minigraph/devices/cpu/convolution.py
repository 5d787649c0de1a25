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
MANY_CHANNELS = 256  # from which on weights exceed the cache


class PixelSet(NamedTuple):
    """Pixels of a result, along one axis, with the same taps.

    first, step, size    first pixel, distance to the next, and number of pixels
    tap, tap_step, taps  first tap, distance to the next, and number of taps
    start, start_step    pixel that `first` reads at the first tap, and distance to the next
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
    """One axis of a convolution: the sizes of its images, and its window.

    bordered  whether a window has no taps beyond the images; otherwise these read zeros there
    """

    input_size: int
    output_size: int
    taps: int
    stride: int
    padding: int
    dilation: int
    bordered: bool = True

    def input_pixels(self, pixel: int) -> list[tuple[int, int]]:
        """Return the taps of a pixel of the output, each with the input pixel that it reads."""
        first = pixel * self.stride - self.padding
        reads = [(tap, first + tap * self.dilation) for tap in range(self.taps)]
        return [(tap, x) for tap, x in reads if not self.bordered or 0 <= x < self.input_size]

    def output_pixels(self, pixel: int) -> list[tuple[int, int]]:
        """Return the taps that read a pixel of the input, each with the output pixel."""
        spans = [(tap, pixel + self.padding - tap * self.dilation) for tap in range(self.taps)]
        reads = [(tap, span // self.stride) for tap, span in spans if span % self.stride == 0]
        return [(tap, y) for tap, y in reads if not self.bordered or 0 <= y < self.output_size]

    def sets(self, backward: bool) -> list[PixelSet]:
        """Return all pixels of the output, or, for the gradient, of the input."""
        period = self.stride if backward else 1
        size = self.input_size if backward else self.output_size
        reads_of = self.output_pixels if backward else self.input_pixels
        sets = []
        for residue in range(min(period, size)):
            pixels = range(residue, size, period)
            pairs = ((p, reads_of(p)) for p in pixels)
            for taps, group in itertools.groupby(pairs, lambda pair: [tap for tap, _ in pair[1]]):
                members = list(group)
                first, reads = members[0]
                tap, start = reads[0] if reads else (0, 0)
                next_tap, next_start = reads[1] if len(reads) > 1 else (tap, start)
                steps = next_tap - tap, next_start - start
                spaced = first, period, len(members)
                sets.append(PixelSet(*spaced, tap, steps[0], len(taps), start, steps[1]))
        return sets


class LaidOutConvolution(NamedTuple):
    """A convolution or gradient of images in blocks, or of few channels in nchw.

    conv      the convolution
    window    sides of its window
    x         shape of the images that it reads, in their layout
    y         shape of the images that it writes, or of dy for the weights' gradient
    lanes     lanes of a block of `y`
    lanes_in  lanes of a block of `x`: 1 in nchw
    """

    conv: Conv2d
    window: Shape
    x: Shape
    y: Shape
    lanes: int
    lanes_in: int


def laid_out_convolution(node: Node) -> LaidOutConvolution | None:
    """Return the float32 convolution that `node` is, or None."""
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
    return form if all(spec.dtype == F32 and spec.size for spec in specs) else None


def convolution_kernel(node: Node, threads: int) -> NativeKernel:
    """Return the kernel of a convolution, or of one of its gradients, of images in nchw."""
    op = node.op
    if isinstance(op, Conv2dBackwardWeights):
        conv, (dy, x), w = op.conv, (operand.shape for operand in node.inputs), node.shape
        batches = _groups(conv, math.prod(dy[1:]), math.prod(x[1:]), math.prod(w))
        return contraction_kernel(node, (0, 1), _weights(conv, x, dy, w), batches, (0, 0), threads)
    conv = conv_of(op)
    x, w = (operand.shape for operand in node.inputs[:2])
    sizes = math.prod(w), math.prod(x[1:]), math.prod(node.shape[1:])
    batches = _groups(conv, *sizes, bias=w[0])
    contractions = _images(conv, x, w, node.shape, isinstance(op, Conv2dBackwardData))
    return contraction_kernel(node, (1, 0), [contractions], batches, (1, 0), threads)


def _groups(conv: Conv2d, x: int, y: int, z: int, bias: int = 0) -> list[Batch]:
    """Return the axis of groups, which divide the elements of each operand evenly."""
    g = conv.groups
    return [Batch(g, x // g, y // g, z // g, bias // g)] if g > 1 else []


def axes_of(conv: Conv2d, shape_in: Shape, shape_out: Shape, window: Shape) -> list[Axis]:
    columns = (shape_in[2:4], shape_out[2:4], window, conv.stride, conv.padding, conv.dilation)
    return [Axis(*axis) for axis in zip(*columns, strict=True)]


def _images(conv: Conv2d, x: Shape, w: Shape, y: Shape, backward: bool) -> list[Contraction]:
    """Return the contractions of a convolution, or of the gradient for its input."""
    (n, _, *x_sides), (_, _, *y_sides), (k, c, r, s) = x, y, w
    (outs, ins), taps = (k // conv.groups, c), r * s
    shape_in, shape_out = (y, x) if backward else (x, y)
    sets = [axis.sets(backward) for axis in axes_of(conv, shape_in, shape_out, (r, s))]
    paces = (1, 1) if backward else conv.stride
    w_steps = [taps, ins * taps] if backward else [ins * taps, taps]  # rows of w, and its sums
    rows, summed = (ins, outs) if backward else (outs, ins)

    def contraction(vertical: PixelSet, horizontal: PixelSet) -> Contraction:
        return Contraction(
            rows,
            (n, vertical.size, horizontal.size),
            (summed, vertical.taps, horizontal.taps),
            w_steps[0],
            (w_steps[1], vertical.tap_step * s, horizontal.tap_step),
            (math.prod(x_sides), vertical.start_step * x_sides[1], horizontal.start_step),
            (math.prod(x[1:]), paces[0] * x_sides[1], paces[1]),
            math.prod(y_sides),
            (math.prod(y[1:]), vertical.step * y_sides[1], horizontal.step),
            vertical.tap * s + horizontal.tap,
            vertical.start * x_sides[1] + horizontal.start,
            vertical.first * y_sides[1] + horizontal.first,
        )

    return list(itertools.starmap(contraction, itertools.product(*sets)))


def _weights(conv: Conv2d, x: Shape, dy: Shape, w: Shape) -> list[list[Contraction]]:
    """Return the contractions of a weights' gradient by calls; later calls add to the gradient.

    With many channels each tap is a contraction.  With few channels, whose weights stay in the
    cache, sets of pixels add their products for all taps.
    """
    (n, _, *x_sides), (k, c, r, s), (_, _, *dy_sides) = x, w, dy
    rows, taps = k // conv.groups, r * s
    axes = axes_of(conv, x, dy, (r, s))

    def contraction(vertical: PixelSet, horizontal: PixelSet) -> Contraction:
        return Contraction(
            rows,
            (c, vertical.taps, horizontal.taps),
            (n, vertical.size, horizontal.size),
            math.prod(dy_sides),
            (math.prod(dy[1:]), dy_sides[1], 1),
            (math.prod(x[1:]), conv.stride[0] * x_sides[1], conv.stride[1]),
            (math.prod(x_sides), vertical.start_step * x_sides[1], horizontal.start_step),
            c * taps,
            (taps, vertical.tap_step * s, horizontal.tap_step),
            vertical.first * dy_sides[1] + horizontal.first,
            vertical.start * x_sides[1] + horizontal.start,
            vertical.tap * s + horizontal.tap,
        )

    if c >= MANY_CHANNELS:
        return [[*itertools.starmap(contraction, itertools.product(*map(_each_tap, axes)))]]
    none, all_columns = (0, 0, 0), (1, 1, c * taps)
    zeros = Contraction(rows, all_columns, none, 0, none, none, none, c * taps, (0, 0, 1))
    sets = itertools.product(*(axis.sets(False) for axis in axes))
    return [[zeros], *([contraction(vertical, horizontal)] for vertical, horizontal in sets)]


def _each_tap(axis: Axis) -> list[PixelSet]:
    """Return the set of pixels of each tap, which may be empty."""
    sets = []
    for tap in range(axis.taps):
        single_tap = axis._replace(taps=1, padding=axis.padding - tap * axis.dilation)
        reading = [pixels._replace(tap=tap) for pixels in single_tap.sets(False) if pixels.taps]
        sets += reading or [PixelSet(0, 1, 0, tap, 0, 1, 0, 0)]
    return sets

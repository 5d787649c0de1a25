"""Products and convolutions as products of tiles: see amx.c and tiles.c.

Lines are the rows of the first operand and the columns of the second one.  Lines and sums each have
four axes in memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from minigraph.devices.cpu import onednn
from minigraph.devices.cpu.amx import DEPTH, LINES, PANEL
from minigraph.devices.cpu.convolution import (
    LaidOutConvolution,
    PixelSet,
    axes_of,
    laid_out_convolution,
)
from minigraph.devices.cpu.kernel import Place
from minigraph.graph import Node, Shape
from minigraph.ops.conv import Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut
from minigraph.ops.matmul import Matmul

Four = tuple[int, int, int, int]


class Axes(NamedTuple):
    """Lines or sums of an operand along four axes; a unit is one, or LINES if vectorised.

    units        number of units
    step         distance in memory along each axis, in elements
    row_step     distance along each axis in rows of an image
    column_step  distance along each axis in columns of an image
    """

    units: int
    extent: Four
    step: Four
    row_step: Four = (0, 0, 0, 0)
    column_step: Four = (0, 0, 0, 0)


class TileOperand(NamedTuple):
    """The layout of an operand.

    lines          rows of the first operand and of the result, columns of the second
    sums           sums of the two operands, columns of the result
    vertical       whether vectors run along lines, not along sums
    lane           distance of a vector's elements
    first          offset of the first line and sum
    row, column    position of the first line and sum in its image
    height, width  sides of the image in pixels; zeros surround it
    """

    lines: Axes
    sums: Axes
    vertical: bool = False
    lane: int = 1
    first: int = 0
    row: int = 0
    column: int = 0
    height: int = 1
    width: int = 1

    def words(self, place: Place) -> list[int]:
        """Return the words of a NAME_operand in the C text."""
        head = self.first, self.row, self.column, self.height, self.width, self.vertical, self.lane
        axes = [
            (axis.units, *axis.extent, *axis.step, *axis.row_step, *axis.column_step)
            for axis in (self.lines, self.sums)
        ]
        return [*place, *head, *itertools.chain(*axes)]


class TileProduct(NamedTuple):
    """z = x y, of `rows` x `sums` and `sums` x `columns` numbers.

    text  the C text that computes it: "images" if rows are pixels whose windows overlap, "weights"
          if sums are pixels and columns read their windows, else "matrices"
    """

    rows: int
    columns: int
    sums: int
    x: TileOperand
    y: TileOperand
    z: TileOperand
    text: str = "matrices"


def products_in_tiles(node: Node, columns: Sequence[bool] = (False, False)) -> list[TileProduct]:
    """Return the products of tiles that compute `node`; empty if tiles do not.

    columns  whether each of two matrices is stored by columns

    The products compute different elements of the result.  Elements that none computes are 0.
    """
    if isinstance(node.op, Matmul):
        return _matrices(node, columns)
    form = laid_out_convolution(node)
    if form is None or form.conv.groups > 1 or not isinstance(node.op, LaidOut):
        return []
    if not all(_is_in_vectors(x) for x in (form.x, form.y)):
        return []
    if isinstance(node.op.plain, Conv2dBackwardWeights):
        return [_weights(form)]
    backward = isinstance(node.op.plain, Conv2dBackwardData)
    shape_in, shape_out = (form.y, form.x) if backward else (form.x, form.y)
    axes = axes_of(form.conv, shape_in, shape_out, form.window)
    all_sets = (axis._replace(bordered=False).sets(backward) for axis in axes)
    sets = [[*map(_upwards, filter(lambda pixels: pixels.taps, each))] for each in all_sets]
    return [_images(form, pair, backward) for pair in itertools.product(*sets)]


def _is_in_vectors(x: Shape) -> bool:
    """Whether images are stored in vectors of LINES channels."""
    return len(x) == 5 and (x[4] == LINES or (x[1] == 1 and x[4] % LINES == 0))


def _matrices(node: Node, columns: Sequence[bool]) -> list[TileProduct]:
    if node.ndim != 2 or node.dtype != onednn.F32 or not all(x.size for x in node.inputs):
        return []
    (m, k), (_, n) = (x.shape for x in node.inputs[:2])
    x = _matrix(m, k, *((1, m) if columns[0] else (k, 1)))
    y = _matrix(n, k, *((k, 1) if columns[1] else (1, n)))
    z = TileOperand(_line(m, n), _line(math.ceil(n / LINES), LINES))
    return [TileProduct(m, n, k, x, y, z)]


def _line(count: int, step: int) -> Axes:
    return Axes(count, (1, 1, 1, count), (0, 0, 0, step))


def _matrix(lines: int, sums: int, line_step: int, sum_step: int) -> TileOperand:
    """Return a matrix with these distances of lines and of sums, one of which is 1."""
    if sum_step == 1:
        return TileOperand(_line(lines, line_step), _line(math.ceil(sums / LINES), LINES))
    return TileOperand(_line(math.ceil(lines / LINES), LINES), _line(sums, sum_step), vertical=True)


class _Strides(NamedTuple):
    """The distances of images, rows, pixels, and vectors of LINES channels, in elements."""

    image: int
    row: int
    pixel: int
    channels: int


def _strides(x: Shape) -> _Strides:
    _, blocks, height, width, lanes = x
    area = height * width * lanes
    return _Strides(blocks * area, width * lanes, lanes, area if blocks > 1 else LINES)


def _channels(x: Shape) -> int:
    return x[1] * x[4]


def _pixels(sizes: tuple[int, int, int], strides: _Strides, pace: tuple[int, int] = (1, 1)) -> Axes:
    """Return the pixels of images: number of images, rows and columns, `pace` pixels apart."""
    step = 0, strides.image, pace[0] * strides.row, pace[1] * strides.pixel
    return Axes(math.prod(sizes), (1, *sizes), step, (0, 0, pace[0], 0), (0, 0, 0, pace[1]))


def _with_borders(operand: TileOperand, x: Shape, start: Sequence[int]) -> TileOperand:
    """Return images `x` as an operand whose first window begins at pixel `start`."""
    (row, column), strides = start, _strides(x)
    first = row * strides.row + column * strides.pixel
    return operand._replace(first=first, row=row, column=column, height=x[2], width=x[3])


def _taps(x: Shape, taps: Sequence[int], spacing: Sequence[int]) -> Axes:
    """Return the vectors of channels that a window of images `x` has at each tap.

    With DEPTH channels or a multiple, a step of sums has one tap.
    """
    (r, s), (down, across), strides, group = taps, spacing, _strides(x), _group(_channels(x))
    extent = _channels(x) // group, r, s, group // LINES
    step = group // LINES * strides.channels, down * strides.row, across * strides.pixel
    return Axes(
        math.prod(extent), extent, (*step, strides.channels), (0, down, 0, 0), (0, 0, across, 0)
    )


def _group(channels: int) -> int:
    """Return the number of consecutive channels of a tap in the sums."""
    return LINES if channels % DEPTH else DEPTH


def _upwards(pixels: PixelSet) -> PixelSet:
    """Return pixels with taps in the order in which the pixels that they read increase."""
    if pixels.start_step >= 0:
        return pixels._replace(start_step=max(pixels.start_step, 1))  # of a single tap it is 0
    tap, start = (
        first + (pixels.taps - 1) * step
        for first, step in ((pixels.tap, pixels.tap_step), (pixels.start, pixels.start_step))
    )
    steps = {"tap_step": -pixels.tap_step, "start_step": -pixels.start_step}
    return pixels._replace(tap=tap, start=start, **steps)


def _images(form: LaidOutConvolution, sets: Sequence[PixelSet], backward: bool) -> TileProduct:
    """Return the product for sets of rows and of columns of a convolution's result.

    backward  whether the result is the gradient for images: a convolution of dy
    """
    (vertical, horizontal), (r, s), strides = sets, form.window, _strides(form.y)
    taps, channels, columns = r * s, _channels(form.x), _channels(form.y)
    group, windows = _group(channels), (vertical.taps, horizontal.taps)
    first = vertical.tap * s + horizontal.tap
    # Of the weights: vectors run along columns if `backward`, else along sums.
    line = _line(columns // LINES, LINES * taps) if backward else _line(columns, channels * taps)
    channel, unit = (columns * taps, 1) if backward else (taps, LINES)
    extent = channels // group, *windows, group // unit
    step = group * channel, vertical.tap_step * s, horizontal.tap_step, unit * channel
    vectors = Axes(math.prod(extent), extent, step)
    y = TileOperand(line, vectors, vertical=backward, lane=taps, first=first)
    pace = (1, 1) if backward else form.conv.stride
    sizes = form.y[0], vertical.size, horizontal.size
    x_taps = _taps(form.x, windows, (vertical.start_step, horizontal.start_step))
    x = TileOperand(_pixels(sizes, _strides(form.x), pace), x_taps)
    x = _with_borders(x, form.x, (vertical.start, horizontal.start))
    z_pixels = _pixels(sizes, strides, (vertical.step, horizontal.step))
    offset = vertical.first * strides.row + horizontal.first * strides.pixel
    z = TileOperand(z_pixels, _line(columns // LINES, strides.channels), first=offset)
    text = "images" if pace == (1, 1) and group == DEPTH else "matrices"
    return TileProduct(math.prod(sizes), columns, math.prod(windows) * channels, x, y, z, text)


def _weights(form: LaidOutConvolution) -> TileProduct:
    (r, s), dy, strides = form.window, form.y, _strides(form.y)
    taps, ins, outs = r * s, _channels(form.x), _channels(dy)
    sizes = dy[0], dy[2], dy[3]
    pixels, group = _pixels(sizes, strides), _group(ins)
    halo = (s - 1) * form.conv.dilation[1]
    x_pixels = _pixels(sizes, _strides(form.x), form.conv.stride)
    y = TileOperand(_taps(form.x, form.window, form.conv.dilation), x_pixels, vertical=True)
    y = _with_borders(y, form.x, [-n for n in form.conv.padding])
    z_sums = y.lines._replace(step=(group * taps, s, 1, LINES * taps))
    z = TileOperand(_line(outs, ins * taps), z_sums, lane=taps)
    lines, width = _line(outs // LINES, strides.channels), dy[3]
    fits = form.conv.stride == (1, 1) and halo <= LINES and width + halo <= DEPTH * PANEL
    if taps > 1 and fits and group == DEPTH:  # rows with borders, where dy has zeros
        bordered = _pixels((*sizes[:2], width + halo), strides)._replace(row_step=(0, 0, 0, 0))
        x = TileOperand(lines, bordered, vertical=True, width=width)
        return TileProduct(outs, taps * ins, bordered.units, x, y, z, "weights")
    x = TileOperand(lines, Axes(pixels.units, pixels.extent, pixels.step), vertical=True)
    return TileProduct(outs, taps * ins, pixels.units, x, y, z)

"""Products and convolutions as the tiles of AMX read them: see tiles.c.

Lines are the rows of the first operand and the columns of the second one.  Lines, and what is
summed over, each lie along four axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from minigraph.devices.cpu import onednn
from minigraph.devices.cpu.convolution import LaidOutConvolution, laid_out_convolution
from minigraph.devices.cpu.kernel import Place
from minigraph.graph import Node, Shape
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut
from minigraph.ops.matmul import Matmul

SIDE, DEEP = 16, 32  # of a tile: lines, sums
PANEL = 32  # steps of DEEP sums that are added up in registers, at most
Four = tuple[int, int, int, int]


class Axes(NamedTuple):
    """Lines or sums of an operand, by four axes; where vectors are along them, in units of SIDE.

    units   how many there are
    step    how far apart they are, in elements
    down    how many rows of an image are between them
    across  how many columns
    """

    units: int
    extent: Four
    step: Four
    down: Four = (0, 0, 0, 0)
    across: Four = (0, 0, 0, 0)


class TileOperand(NamedTuple):
    """Where an operand's elements lie.

    lines         rows of the first operand and of the result, columns of the second
    sums          what is summed over; columns of the result
    vertical      whether vectors are along lines; if not, along sums
    lane          how far apart the elements of a vector are
    first         the element of the first line and sum
    row, column   of an image, where that is
    high, wide    rows and columns of the image, around which there are zeros
    """

    lines: Axes
    sums: Axes
    vertical: bool = False
    lane: int = 1
    first: int = 0
    row: int = 0
    column: int = 0
    high: int = 1
    wide: int = 1

    def words(self, place: Place) -> list[int]:
        """Return a NAME_operand of the text."""
        head = self.first, self.row, self.column, self.high, self.wide, self.vertical, self.lane
        axes = [
            (each.units, *each.extent, *each.step, *each.down, *each.across)
            for each in (self.lines, self.sums)
        ]
        return [*place, *head, *itertools.chain(*axes)]


class TileProduct(NamedTuple):
    """z = x y, of `rows` times `sums` and `sums` times `columns` numbers.

    text    which text computes it: "matrices" any; "images" where rows are pixels that read those
            around them; "weights" where sums are over pixels, and columns read those around
    spaced  whether the result has pixels that are no row: they are 0
    """

    rows: int
    columns: int
    sums: int
    x: TileOperand
    y: TileOperand
    z: TileOperand
    text: str = "matrices"
    spaced: bool = False


def product_in_tiles(node: Node, columns: Sequence[bool] = (False, False)) -> TileProduct | None:
    """Return the product of tiles that `node` is, or None if it is none.

    columns  which of two matrices lie in columns
    """
    if isinstance(node.op, Matmul):
        return _matrices(node, columns)
    form = laid_out_convolution(node)
    if form is None or not isinstance(node.op, LaidOut):
        return None
    if not all(_is_in_vectors(x) for x in (form.read, form.others)):
        return None
    if isinstance(node.op.plain, Conv2dBackwardWeights):
        return _weights(form)
    backward = isinstance(node.op.plain, Conv2dBackwardData)
    if not backward or form.conv.stride == (1, 1):
        return _images(form, backward)
    alone = form.window == (1, 1) and form.conv.padding == (0, 0)
    return _spaced_pixels(form) if alone else None


def _is_in_vectors(x: Shape) -> bool:
    """Whether images lie in vectors of SIDE channels."""
    return len(x) == 5 and (x[4] == SIDE or (x[1] == 1 and x[4] % SIDE == 0))


def _matrices(node: Node, columns: Sequence[bool]) -> TileProduct | None:
    if node.ndim != 2 or node.dtype != onednn.F32 or not all(x.size for x in node.inputs):
        return None
    (m, k), (_, n) = (x.shape for x in node.inputs[:2])
    x = _matrix(m, k, *((1, m) if columns[0] else (k, 1)))
    y = _matrix(n, k, *((k, 1) if columns[1] else (1, n)))
    z = TileOperand(_line(m, n), _line(math.ceil(n / SIDE), SIDE))
    return TileProduct(m, n, k, x, y, z)


def _line(count: int, step: int) -> Axes:
    return Axes(count, (1, 1, 1, count), (0, 0, 0, step))


def _matrix(lines: int, sums: int, line: int, added: int) -> TileOperand:
    """Return a matrix whose lines, and what is summed over, are so far apart: one of both by 1."""
    if added == 1:
        return TileOperand(_line(lines, line), _line(math.ceil(sums / SIDE), SIDE))
    return TileOperand(_line(math.ceil(lines / SIDE), SIDE), _line(sums, added), vertical=True)


class _Strides(NamedTuple):
    """How far apart images, rows, pixels, and vectors of SIDE channels are."""

    image: int
    row: int
    pixel: int
    channels: int


def _strides(x: Shape) -> _Strides:
    _, blocks, high, wide, lanes = x
    area = high * wide * lanes
    return _Strides(blocks * area, wide * lanes, lanes, area if blocks > 1 else SIDE)


def _channels(x: Shape) -> int:
    return x[1] * x[4]


def _pixels(x: Shape, strides: _Strides, pace: tuple[int, int] = (1, 1)) -> Axes:
    """Return the pixels of images `x` in others, with these strides, of `pace` times as many."""
    n, _, high, wide, _ = x
    step = 0, strides.image, pace[0] * strides.row, pace[1] * strides.pixel
    return Axes(n * high * wide, (1, n, high, wide), step, (0, 0, pace[0], 0), (0, 0, 0, pace[1]))


def _with_borders(operand: TileOperand, x: Shape, borders: Sequence[int]) -> TileOperand:
    """Return images `x` as an operand whose first window begins above and left of them."""
    (up, left), strides = borders, _strides(x)
    first = -up * strides.row - left * strides.pixel
    return operand._replace(first=first, row=-up, column=-left, high=x[2], wide=x[3])


def _taps(form: LaidOutConvolution) -> Axes:
    """Return what a window meets of the images that are read: vectors of channels at each tap.

    Where there are DEEP channels, a step of sums has one tap.
    """
    (r, s), (down, across), strides = form.window, form.conv.dilation, _strides(form.read)
    channels = _channels(form.read)
    group = _group(channels)
    extent = channels // group, r, s, group // SIDE
    step = group // SIDE * strides.channels, down * strides.row, across * strides.pixel
    places = (0, down, 0, 0), (0, 0, across, 0)
    return Axes(math.prod(extent), extent, (*step, strides.channels), *places)


def _group(channels: int) -> int:
    """Return how many channels follow each other in a sum before the next tap."""
    return SIDE if channels % DEEP else DEEP


def _images(form: LaidOutConvolution, backward: bool) -> TileProduct:
    """Return a convolution, or the gradient for its images: a convolution with turned windows."""
    conv, (r, s), strides = form.conv, form.window, _strides(form.others)
    taps, added, columns = r * s, _channels(form.read), _channels(form.others)
    group = _group(added)
    borders: Sequence[int] = conv.padding
    if backward:
        spans = zip(conv.dilation, form.window, conv.padding, strict=True)
        borders = [dilation * (size - 1) - padding for dilation, size, padding in spans]
        step = group * columns * taps, -s, -1, columns * taps
        turned = Axes(taps * added, (added // group, r, s, group), step)
        line = _line(columns // SIDE, SIDE * taps)
        y = TileOperand(line, turned, vertical=True, lane=taps, first=taps - 1)
    else:
        extent = added // group, r, s, group // SIDE
        vectors = Axes(math.prod(extent), extent, (group * taps, s, 1, SIDE * taps))
        y = TileOperand(_line(columns, added * taps), vectors, lane=taps)
    pixels = _pixels(form.others, _strides(form.read), conv.stride)
    x = _with_borders(TileOperand(pixels, _taps(form)), form.read, borders)
    z = TileOperand(_pixels(form.others, strides), _line(columns // SIDE, strides.channels))
    text = "images" if conv.stride == (1, 1) and group == DEEP else "matrices"
    return TileProduct(x.lines.units, columns, taps * added, x, y, z, text)


def _spaced_pixels(form: LaidOutConvolution) -> TileProduct:
    """Return the gradient for images of which windows of one pixel meet some: the others' is 0."""
    n, blocks, _, _, lanes = form.others
    met = n, blocks, *form.read[2:4], lanes
    plain = _images(form._replace(conv=Conv2d(), others=met), backward=True)
    strides = _strides(form.others)
    columns = _line(plain.columns // SIDE, strides.channels)
    z = TileOperand(_pixels(met, strides, form.conv.stride), columns)
    return plain._replace(z=z, spaced=True)


def _weights(form: LaidOutConvolution) -> TileProduct:
    (r, s), dy, strides = form.window, form.others, _strides(form.others)
    taps, ins, outs = r * s, _channels(form.read), _channels(dy)
    pixels, group = _pixels(dy, strides), _group(ins)
    further = (s - 1) * form.conv.dilation[1]
    read = _pixels(dy, _strides(form.read), form.conv.stride)
    y = TileOperand(_taps(form), read, vertical=True)
    y = _with_borders(y, form.read, form.conv.padding)
    each = y.lines._replace(step=(group * taps, s, 1, SIDE * taps))
    z = TileOperand(_line(outs, ins * taps), each, lane=taps)
    lines, wide = _line(outs // SIDE, strides.channels), dy[3]
    near = form.conv.stride == (1, 1) and further <= SIDE and wide + further <= DEEP * PANEL
    if taps > 1 and near and group == DEEP:  # rows with borders, where dy has zeros
        bordered = _pixels((*dy[:3], wide + further, dy[4]), strides)._replace(down=(0, 0, 0, 0))
        x = TileOperand(lines, bordered, vertical=True, wide=wide)
        return TileProduct(outs, taps * ins, bordered.units, x, y, z, "weights")
    x = TileOperand(lines, Axes(pixels.units, pixels.extent, pixels.step), vertical=True)
    return TileProduct(outs, taps * ins, pixels.units, x, y, z)

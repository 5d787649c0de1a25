"""Convolutions with windows of 3 x 3 or 5 x 5 by Winograd's algorithm, in C: oneDNN 3.2 has none.

Results are computed in tiles of 4 x 4.  The input pixels of a tile and the weights are transformed
to 36 points, for the larger window to 64.  At each point the convolution is a matrix product over
the channels, with 4 or 6.25 times fewer multiplications than a direct convolution.  The gradient
for the weights is the transposed algorithm, with products over the tiles.

Images whose sides are no multiple of 4 lie side by side, with zeros between, where that makes fewer
tiles: 32 images of 13 x 13 have 392 instead of 512.

For windows of 3 x 3 the points are 0, 2/3, -2/3, 3/2, -3/2 and infinity: the error is four times
that of a direct convolution; with Lavin and Gray's 1, -1, 2, -2 it would be eight times (root mean
squares, 512 channels).  With windows of 5 x 5 it is four times, too (192 channels).

Errors are relative to the pixels of a whole tile.  A tile is computed directly if the sum of
squares of its pixels is more than MAX_RATIOS times that of the pixels of one result.  So errors
stay below 64 roundings of the norm of a result's pixels times the norm of its weights, and a result
of zeros is zero.  A tile with a NaN or infinite result is computed again directly, because the
algorithm spreads NaN over the tile; many of these tiles are slow.

Strides and dilations are 1, and images are in blocks of channels, see `minigraph.ops.layout`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from minigraph.autotune.candidate import Candidate
from minigraph.devices.cpu import compiler, onednn
from minigraph.devices.cpu.convolution import laid_out_convolution
from minigraph.devices.cpu.cook_toom import Matrix, matrices, statements, transposed
from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.devices.cpu.onednn import F32
from minigraph.devices.cpu.prepacked import prepacked_kernel
from minigraph.devices.cpu.product import outer_products, sums
from minigraph.devices.problem import Arrangement
from minigraph.graph import Node, Op, Shape
from minigraph.jit.emitter import block, function, indented
from minigraph.jit.macros import with_macros
from minigraph.jit.source import KernelSource
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights

NAME = "winograd 4x4"  # the algorithm
TILE = 4  # results on each side; tiles of 2 x 2 would round less, but take longer
POINTS = {  # by window; infinity is a further point
    3: [Fraction(p) for p in ("0", "2/3", "-2/3", "3/2", "-3/2")],
    5: [Fraction(p) for p in ("0", "1", "-1", "1/2", "-1/2", "2", "-2")],
}
# By lanes: the tiles of a product in registers, with two vectors of sums each, and the size of the
# groups for the remainder, which divides the first number.
ROWS = {8: (6, 2), 16: (12, 4)}
# Tiles of a strip that one thread computes: they fit its second-level cache.
PRIVATE_STRIP = 48
# If transformed weights have more bytes, or there are few tiles, all threads share each strip, so
# that no thread reads all weights.
LARGE_WEIGHTS = 4 << 20
# A shared strip has at most SHARED_STRIP tiles, and each thread computes some outputs of all of
# them.  It transforms the weights of CHUNK_CHANNELS input channels on the fly, right before it uses
# them, while they are in its second-level cache; with more strips, all weights are transformed
# beforehand.
SHARED_STRIP, CHUNK_CHANNELS, MAX_ON_THE_FLY_STRIPS = 256, 64, 2
# Gradients for weights: a thread computes PANEL_INS x PANEL_OUTS blocks of them for all tiles, if
# there are at most SHARED_STRIP tiles, with at most PANEL_BYTES of points.  Otherwise strips have
# at most SUMMED_STRIP tiles, and the sums at all points of all weights are kept between them.
PANEL_INS, PANEL_OUTS, PANEL_BYTES, SUMMED_STRIP = 2, 8, 20 << 20, 200
# By window: the largest ratio of the sum of squares of a tile's pixels to that of one result's
# pixels.  The error grows with the root of that ratio, and with the number of points.
MAX_RATIOS = {3: 256, 5: 64}
# Tiles from which on the algorithm is expected to be the fastest.
MIN_TILES = 8

# ---------------------------------------------------------------- the texts

COMMON_TEXT, TRANSFORM_TEXT, IMAGES_TEXT, WEIGHTS_TEXT = (
    Path(__file__).with_name(f"winograd{part}.c").read_text()
    for part in ("", "_transform", "_images", "_weights")
)


class WinogradForm(NamedTuple):
    """The parameters of a C text.

    window   taps on each side
    lanes    channels of a block
    vectors  blocks of outputs whose sums a product keeps in registers
    """

    window: int
    lanes: int
    vectors: int

    @property
    def side(self) -> int:
        """The input pixels of a tile, on each side."""
        return TILE + self.window - 1

    @property
    def cell(self) -> int:
        """The side of the largest cell of pixels that every window contains.

        The windows are those of a tile's results, or, for the weights, of a tile of dy.
        """
        return (min(TILE, self.window) + 1) // 2

    @property
    def transforms(self) -> tuple[Matrix, Matrix, Matrix]:
        return matrices(TILE, self.window, POINTS[self.window])


def _text(form: WinogradForm, rows: int, parts: Sequence[str]) -> KernelSource:
    """Return a source of these parts and the functions that they share."""
    fixed = {"WINDOW": form.window, "TILE": TILE, "SIDE": form.side, "POINTS": "(SIDE * SIDE)"}
    fixed |= {"TAPS": "(WINDOW * WINDOW)", "vec": "NAME_vec", "MAX_RATIO": MAX_RATIOS[form.window]}
    text = "\n".join([COMMON_TEXT, *parts])
    return KernelSource(with_macros(text, L=form.lanes, R=rows, NV=form.vectors, **fixed))


def _line_transform(name: str, matrix: Matrix) -> str:
    """Return the function that multiplies a line of pixels or taps by a matrix."""
    head = (
        "MG_CONTRACT inline __attribute__((always_inline))\n"
        f"void NAME_{name}(const vec *x, int64_t x_stride, vec *y, int64_t y_stride)"
    )
    return function(head, statements(matrix))


def _tile_transform(name: str, patch: str, cell: int = 0) -> str:
    names = {"TRANSFORM_TILE": f"NAME_transform_{name}", "TRANSFORM_LINE": f"NAME_{name}"}
    return with_macros(TRANSFORM_TEXT, **names, PATCH=patch, CELL=cell)


def _image_products(name: str, rows: int, vectors: int) -> str:
    """Return the sums over the channels of v[tile t] u[NV blocks k], for `rows` tiles.

    They are stored to m[k * capacity + t], or added to it.
    """
    cells = sums(rows, vectors)
    return function(
        f"MG_CONTRACT void NAME_products_{name}(\n"
        "    int64_t blocks, int64_t capacity, const vec *v, const vec *u, vec *m, int accumulate)",
        [
            *(f"vec s{r}_{j} = {{0}};" for r, j in cells),
            "for (int64_t b = 0; b < blocks; b++, v += capacity)",
            *indented(
                block(
                    "for (int64_t l = 0; l < L; l++, u += NV)",
                    "const float *x = (const float *)v + l;",
                    *(f"const vec f{j} = u[{j}];" for j in range(vectors)),
                    *(f"s{r}_{j} += x[{r} * L] * f{j};" for r, j in cells),
                )
            ),
            *block("if (accumulate)", *(f"s{r}_{j} += m[{j} * capacity + {r}];" for r, j in cells)),
            *(f"m[{j} * capacity + {r}] = s{r}_{j};" for r, j in cells),
        ],
    )


@functools.cache
def _image_text(form: WinogradForm) -> KernelSource:
    rows, tail = ROWS[form.lanes]
    at, g, bt = form.transforms
    parts = [
        _line_transform("input", bt),
        _line_transform("output", at),
        _line_transform("kernel", g),
        _tile_transform("input", "SIDE", form.cell),
        _image_products("rows", rows, form.vectors),
        _image_products("tail", tail, form.vectors),
        with_macros(IMAGES_TEXT, TAIL=tail),
    ]
    return _text(form, rows, parts)


@functools.cache
def _weight_text(form: WinogradForm) -> KernelSource:
    rows = form.lanes // 2  # a divisor that leaves registers for operands, with two vectors of sums
    at, g, bt = form.transforms
    parts = [
        _line_transform("input", bt),
        _line_transform("result", transposed(at)),
        _line_transform("kernel", transposed(g)),
        _tile_transform("input", "SIDE", form.cell),
        _tile_transform("result", "TILE"),
        outer_products(rows, form.vectors),
        WEIGHTS_TEXT,
    ]
    return _text(form, rows, parts)


# ---------------------------------------------------------------- kernels


def computes(node: Node) -> bool:
    """Whether the algorithm supports `node`."""
    form = laid_out_convolution(node)
    return (
        form is not None
        and form.conv.groups == 1
        and form.window in [(side, side) for side in POINTS]
        and form.conv.stride == form.conv.dilation == (1, 1)
        and max(form.conv.padding) < form.window[0]
        and form.lanes == form.lanes_in in onednn.blocks()
    )


def is_favourite(node: Node) -> bool:
    """Whether the algorithm is expected to be faster than all others for `node`."""
    if not (computes(node) and compiler.compiler()):
        return False
    y = node if node.ndim == 5 else node.inputs[0]  # y, dx or dy
    return _separate_tiles(y.shape).tiles >= MIN_TILES


def candidates(arrangement: Arrangement, threads: int) -> Iterator[Candidate]:
    """Yield the algorithm if it supports a node and there is a compiler."""
    node, _, layouts = arrangement
    if computes(node) and compiler.compiler():
        yield Candidate(NAME, layouts, functools.partial(winograd_kernel, node, threads))


def winograd_kernel(node: Node, threads: int) -> NativeKernel:
    """Return the kernel for `node`, which the algorithm supports."""
    op: Op = node.op.plain  # type: ignore[attr-defined]
    if isinstance(op, Conv2dBackwardWeights):
        kernel = _to_weights(node, op.conv, threads)
    else:
        assert isinstance(op, Conv2d | Conv2dBackwardData)
        kernel = _to_images(node, op, threads)
    kernel.threads = threads
    return kernel


def _to_images(node: Node, op: Conv2d | Conv2dBackwardData, threads: int) -> NativeKernel:
    x, w, *bias = node.inputs
    _, inputs, window, _ = w.shape
    taps = window * window
    if isinstance(op, Conv2dBackwardData):
        # A convolution of dy with rotated weights, and inputs and outputs exchanged.
        padding = [window - 1 - p for p in op.conv.padding]
        steps = taps - 1, taps, inputs * taps, -1
    else:
        padding = list(op.padding)
        steps = 0, inputs * taps, taps, 1
    blocking = _ImageBlocking(window, padding, x.shape, node.shape, threads)
    return prepacked_kernel(
        node,
        NAME,
        _image_text(blocking.form),
        [*blocking.sizes, *steps, len(bias)],
        weights=blocking.weights * blocking.vector_bytes,
        workspace=blocking.memory(on_the_fly=False) * blocking.vector_bytes,
        on_the_fly=blocking.memory(on_the_fly=True) * blocking.vector_bytes
        if blocking.on_the_fly
        else None,
    )


def _to_weights(node: Node, conv: Conv2d, threads: int) -> NativeKernel:
    dy, x = (operand.shape for operand in node.inputs)
    blocking = _WeightBlocking(node.shape[-1], conv.padding, x, dy, threads)
    values = [*blocking.sizes, *blocking.panel]
    parts = [call(_weight_text(blocking.form), *values, scratch=True)]
    return NativeKernel(node, parts, blocking.memory * blocking.vector_bytes, algorithm=NAME)


class TileGrid(NamedTuple):
    """The tiles of images that lie in `rows` and `columns`.

    height, width  results from the begin of an image to that of the next one
    spans          whether a tile may hold pixels of several images
    across         tiles in a row
    tiles          all of them
    """

    rows: int
    columns: int
    height: int
    width: int
    spans: bool
    across: int
    tiles: int


def _separate_tiles(y: Shape) -> TileGrid:
    """Return the tiles of images of results, none of which holds pixels of two images."""
    n, _, h, w, _ = y
    down, across = math.ceil(h / TILE), math.ceil(w / TILE)
    return TileGrid(n, 1, down * TILE, across * TILE, False, across, n * down * across)


def tile_grid(y: Shape, window: int, padding: Sequence[int]) -> TileGrid:
    """Return the fewest tiles for images of results, and of several such grids the narrowest."""
    n, _, h, w, _ = y
    height, width = (side + window - 1 - p for side, p in zip((h, w), padding, strict=True))
    best = _separate_tiles(y)
    for columns in range(1, n + 1):
        rows = n // columns
        down = math.ceil(((rows - 1) * height + h) / TILE)
        across = math.ceil(((columns - 1) * width + w) / TILE)
        if rows * columns == n and down * across < best.tiles:
            best = TileGrid(rows, columns, height, width, True, across, down * across)
    return best


class _Blocking:
    """The division of a convolution from images `x` to images `y` into strips of tiles.

    form      parameters of the text
    shared    whether all threads share each strip; otherwise each thread has its own strips
    tiles     number of tiles of all images
    capacity  tiles of a strip, at most
    weights   vectors of transformed weights
    sizes     the grid of tiles; blocks of x and y; the sides of both; padding
    """

    def __init__(
        self, window: int, padding: Sequence[int], x: Shape, y: Shape, threads: int
    ) -> None:
        lanes = x[4]
        self.threads = threads
        self.form = WinogradForm(window, lanes, 1 if y[1] % 2 else 2)
        self.points = self.form.side**2
        self.vector_bytes = lanes * F32.itemsize
        grid = tile_grid(y, window, padding)
        self.tiles = grid.tiles
        self.weights = self.points * (x[1] * lanes * y[1] + 1)
        small = self.weights * self.vector_bytes <= LARGE_WEIGHTS
        self.shared = not small or self.tiles < threads * PRIVATE_STRIP
        self.capacity = self.even_strip(SHARED_STRIP) if self.shared else PRIVATE_STRIP
        self.ins, self.outs = x[1], y[1]
        self.sizes = [*map(int, grid), x[1], y[1], *x[2:4], *y[2:4], *padding]

    def even_strip(self, limit: int) -> int:
        """Return the tiles of a strip if all tiles are in the fewest strips within the limit."""
        _, tail = ROWS[self.form.lanes]
        strips = math.ceil(self.tiles / limit)
        return math.ceil(self.tiles / strips / tail) * tail

    @property
    def space(self) -> int:
        """The vectors of a strip's points."""
        return self.points * ((self.ins + self.outs) * self.capacity + 2)


class _ImageBlocking(_Blocking):
    """The division of a convolution that computes images `y`.

    on_the_fly  whether weights are transformed right before each use
    chunk       blocks of inputs that are transformed at once; 0 if threads have their own strips
    """

    def __init__(
        self, window: int, padding: Sequence[int], x: Shape, y: Shape, threads: int
    ) -> None:
        super().__init__(window, padding, x, y, threads)
        self.on_the_fly = self.shared and self.tiles <= MAX_ON_THE_FLY_STRIPS * self.capacity
        chunk = min(math.ceil(CHUNK_CHANNELS / self.form.lanes), self.ins)
        self.chunk = chunk if self.shared else 0
        self.sizes = [threads, self.chunk, self.capacity, *self.sizes]

    def memory(self, on_the_fly: bool) -> int:
        """Return the vectors of strips and, with `on_the_fly`, of the weights in use."""
        marks = math.ceil(self.capacity / self.form.lanes)
        if not self.shared:
            return self.threads * (self.space + marks)
        vectors = self.form.vectors
        weights = self.chunk * self.form.lanes * vectors + 1 if on_the_fly else 0
        panels = self.threads * (vectors * self.capacity + 1 + weights)
        return marks + self.points * (self.ins * self.capacity + 1 + panels)


class _WeightBlocking(_Blocking):
    """The division of a weights' gradient, from x and `y`, which is dy.

    panel   blocks of inputs and of outputs whose weights a thread computes for all tiles; (0, 0) if
            there are too many tiles, so that sums over strips are kept instead
    memory  vectors of scratch memory
    """

    def __init__(
        self, window: int, padding: Sequence[int], x: Shape, y: Shape, threads: int
    ) -> None:
        super().__init__(window, padding, x, y, threads)
        self.panel = min(PANEL_INS, self.ins), min(PANEL_OUTS, self.outs)
        points = self.space * self.vector_bytes
        teams = 1 if self.shared else threads  # of threads that share strips
        if not self.shared or self.capacity < self.tiles or points > PANEL_BYTES:
            self.panel = 0, 0
            self.capacity = min(self.capacity, self.even_strip(SUMMED_STRIP))
            sums = teams * self.weights
        else:
            sums = threads * self.points * (math.prod(self.panel) * self.form.lanes + 1)
        marks = math.ceil(self.tiles / self.form.lanes)
        self.memory = marks + sums + teams * self.space
        self.sizes = [threads, int(self.shared), self.capacity, *self.sizes]

"""The loop nest of a kernel: unit axes, which are split among threads, and loop axes.

Neighbouring axes are merged if the strides of all operands allow it.  The remaining axes determine
the form (see `pattern`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from minigraph.graph import Node, Shape
from minigraph.jit.domain import Domain
from minigraph.jit.expression import takes_index

MAX_TILE = 64  # rows and columns of a tile
MIN_TILE = 8  # rows and columns of a tile, or length of an innermost axis
MAX_STRIP = 1024  # length of the axis that replaces an innermost axis that is too short
MIN_TILED_ELEMENTS = 1 << 15  # elements of an array that is read in tiles or strips
MAX_COLUMNS = 512  # columns of a unit
MAX_STRIDED_COLUMNS = 128  # of columns that are not contiguous: the first cache holds their lines
MAX_SHORT_COLUMN = 12  # elements of a column that is too short for the cache to matter
MAX_NARROW_ROW = 256  # elements of a narrow row
NARROW_ROWS = 16  # narrow rows of a unit
NARROW_LANES = 16  # accumulators of a narrow row
SCALAR_ACCESSES = ("strided", "back")  # accesses without vector loads
LANE_COUNTS = (8, 16)  # lengths of an innermost axis whose elements are lanes
Ints = tuple[int, ...]
Axis = tuple[int, Ints]  # extent, and the stride of each operand and counter
Axes = tuple[Axis, ...]


@dataclass(frozen=True)
class LoopNest:
    """The form of a kernel and its axes, outermost first.

    units   axes that are split among threads: a unit has one index of each
    loops   axes that a unit runs over
    lanes   the axis within a pixel; of length 1 in other forms than "lane"
    sizes   bytes of an element of each operand
    scales  stride of each counter along its own loop.  A counter is the position along a loop that
            windows bound; it has strides like an operand, after those of all operands
    narrow  whether a unit is several narrow rows
    """

    form: str
    units: Axes
    loops: Axes
    lanes: Axis
    sizes: Ints
    scales: Ints = ()
    narrow: bool = False

    @property
    def count(self) -> int:
        return math.prod(n for n, _ in self.units)

    @property
    def length(self) -> int:
        """The number of elements, or pixels, of a unit."""
        return math.prod(n for n, _ in self.loops)

    @property
    def columns(self) -> int:
        """The largest number of columns, or of narrow rows, of a unit."""
        if self.narrow:
            return NARROW_ROWS
        strided = self.form == "column" and "strided" in self.accesses
        return MAX_STRIDED_COLUMNS if strided and self.length > MAX_SHORT_COLUMN else MAX_COLUMNS

    @property
    def innermost(self) -> Ints:
        """The operands' strides from one element, or pixel, to the next."""
        _, strides = self.units[-1] if self.form == "column" else self.loops[-1]
        return strides

    @property
    def accesses(self) -> tuple[str, ...]:
        """The access of each operand along the innermost axis: see `KernelPattern`."""
        lanes, across = self.lanes
        accesses = []
        for k, (size, stride) in enumerate(zip(self.sizes, self.innermost, strict=False)):
            if not stride and not self.moves(k):
                accesses.append("fixed")
            elif stride == -size and lanes == 1:
                accesses.append("back")
            elif stride == 0:
                accesses.append("same")
            else:
                accesses.append("unit" if stride == (lanes * across[k] or size) else "strided")
        return tuple(accesses)

    def moves(self, k: int) -> bool:
        """Whether operand `k` varies within a unit."""
        return any(strides[k] for _, strides in self.loops)

    def same_strides(self, i: int, k: int) -> bool:
        """Whether operands `i` and `k` have the same strides."""
        axes = (*self.units, *self.loops, self.lanes)
        return all(strides[i] == strides[k] for _, strides in axes)


def arrange(
    domain: Domain, operands: Sequence[Node], strides: Sequence[Shape], short_row: int = 0
) -> LoopNest:
    """Return the loop nest of a kernel for operands with these strides, in bytes.

    short_row  rows of up to this many elements are reduced like columns if they are shorter than a
               vector or not contiguous.  Unless it is 0, a large map gets a longer axis in place of
               a short innermost one
    """
    pairs = ((domain.loops[x], s) for x, s in zip(operands, strides, strict=True))
    by_loop = [{d: s for d, s in zip(*axes, strict=True) if d is not None} for axes in pairs]
    by_loop += map(functools.partial(_counter, domain), domain.bounded)
    scales = tuple(map(operator.getitem, by_loop[len(operands) :], domain.bounded))
    sizes = tuple(x.dtype.itemsize for x in operands)
    rank = len(domain.extents)
    kept, reduced = sorted(domain.kept), sorted(domain.reduced)
    if not domain.reduces:
        form, units, loops = "map", [], list(range(rank))
    else:
        column = bool(reduced) and rank - 1 in domain.kept
        form, units, loops = "column" if column else "row", kept, reduced
    outer, inner = (_collapsed(domain, axes, by_loop) for axes in (units, loops))
    length = math.prod(n for n, _ in inner)
    steps = zip(inner[0][1], sizes, strict=False)
    contiguous = len(inner) == 1 and all(stride in (0, size) for stride, size in steps)
    vectors = contiguous and length >= NARROW_LANES
    like_columns = form == "row" and 1 < length <= short_row and not vectors and not scales
    like_columns = like_columns and outer[-1][0] > 1
    no_lanes = (1, (0,) * len(by_loop))
    nest = LoopNest("column" if like_columns else form, outer, inner, no_lanes, sizes, scales)
    if like_columns or any(takes_index(node.op) for node in domain.graph):
        return nest  # random numbers are counted along one flat axis
    if short_row and form == "row" and len(inner) == 1 and length <= MAX_NARROW_ROW and not scales:
        return replace(nest, narrow=True)
    with_lanes = _with_lanes(domain, nest, by_loop)
    if with_lanes or form != "map":
        return with_lanes or nest
    return _lengthened(nest) if short_row and nest.loops[-1][0] < MIN_TILE else _tiled(nest)


def _counter(domain: Domain, loop: int) -> dict[int, int]:
    """Return the strides of the counter of a loop.

    The counter also counts along the unbounded loops inside its loop, so that all can be merged.
    """
    steps, size = {}, 1
    for inner in range(len(domain.extents) - 1, loop, -1):
        free = not any(d in domain.bounded for d in range(loop + 1, inner + 1))
        if free and (inner in domain.reduced) == (loop in domain.reduced):
            steps[inner] = size
            size *= domain.extents[inner]
    return {**steps, loop: size}


def _collapsed(domain: Domain, axes: list[int], by_loop: list[dict[int, int]]) -> Axes:
    strided = ((domain.extents[a], tuple(s.get(a, 0) for s in by_loop)) for a in axes)
    return collapse(strided) or ((1, (0,) * len(by_loop)),)


def collapse(axes: Iterable[Axis]) -> Axes:
    """Drop axes of length 1 and merge neighbours if the strides of all operands allow it.

    >>> collapse([(2, (48, 0)), (3, (16, 0)), (4, (4, 4))])
    ((6, (16, 0)), (4, (4, 4)))
    """
    merged: list[Axis] = []
    for n, steps in axes:
        if n == 1:
            continue
        if merged and merged[-1][1] == tuple(step * n for step in steps):
            merged[-1] = (merged[-1][0] * n, steps)
        else:
            merged.append((n, steps))
    return tuple(merged)


def _with_lanes(domain: Domain, nest: LoopNest, by_loop: list[dict[int, int]]) -> LoopNest | None:
    """Return the nest with the innermost axis as lanes if it is a block of channels; else None.

    An axis that can be merged with its neighbour does not become lanes, because a longer axis is
    faster, except in kernels that run over columns several times, which no other form supports.
    """
    innermost = len(domain.extents) - 1
    across = tuple(s.get(innermost, 0) for s in by_loop)
    contiguous = all(s in (0, size) for s, size in zip(across, nest.sizes, strict=False))
    is_block = bool(domain.extents) and domain.extents[-1] in LANE_COUNTS
    if nest.form == "row" or not contiguous or not is_block or innermost in domain.bounded:
        return None
    lanes = (domain.extents[-1], across)
    if nest.form == "map":
        if nest.loops[-1] != lanes or len(nest.loops) == 1:
            return None
        return replace(nest, form="lane", loops=nest.loops[:-1], lanes=lanes)
    several_runs = (domain.stages[x] and domain.varies(x) & domain.reduced for x in domain.loops)
    if nest.units[-1] != lanes and not any(several_runs):
        return None
    units = _collapsed(domain, sorted(domain.kept)[:-1], by_loop)
    return replace(nest, form="lane", units=units, lanes=lanes)


def _tiled(nest: LoopNest) -> LoopNest:
    """Return the nest in tiles if the innermost axis of an operand is not that of the kernel.

    Without tiles the kernel would read a transposed array column by column, and each of its cache
    lines many times.
    """
    *outer, (columns, column_steps) = nest.loops
    for k, size in enumerate(nest.sizes):
        along = [a for a, (_, strides) in enumerate(outer) if strides[k] == size]
        if column_steps[k] in (0, size) or not along or nest.length < MIN_TILED_ELEMENTS:
            continue
        rows, row_steps = outer[along[-1]]
        height, width = _tile(rows), _tile(columns)
        if min(height, width) < MIN_TILE:
            continue
        del outer[along[-1]]
        blocks = [
            (rows // height, tuple(s * height for s in row_steps)),
            (columns // width, tuple(s * width for s in column_steps)),
        ]
        return replace(nest, loops=(*outer, *blocks, (height, row_steps), (width, column_steps)))
    return nest


def _lengthened(nest: LoopNest) -> LoopNest:
    """Return the nest with a longer innermost axis, preferably a contiguous one.

    The short axis becomes the next outer one, around a strip that stays in the first cache.
    """
    *outer, innermost = nest.loops

    def rank(a: int) -> tuple[bool, int]:
        extent, strides = outer[a]
        return any(map(operator.eq, strides, nest.sizes)), extent

    longest = max(range(len(outer)), key=rank, default=-1)
    if longest < 0 or outer[longest][0] <= innermost[0] or nest.length < MIN_TILED_ELEMENTS:
        return nest
    extent, strides = outer.pop(longest)
    length = _tile(extent, MAX_STRIP)
    if length < MAX_TILE:  # no divisor is long enough
        length = extent
    blocks = (extent // length, tuple(s * length for s in strides))
    return replace(nest, loops=collapse((*outer, blocks, innermost, (length, strides))))


def _tile(extent: int, limit: int = MAX_TILE) -> int:
    """Return the largest divisor of an extent that is not above a limit."""
    return next(n for n in range(min(extent, limit), 0, -1) if extent % n == 0)

"""The axes of a kernel: which of them threads share, which a unit runs over, and how.

Axes are merged where all operands walk them as one.  What is left decides the form (see `pattern`).
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

TILE = 64  # elements that a tile has along each of two axes at most
NARROW = 8  # elements below which a side of a tile, or an innermost axis, does not pay
STRIP = 1024  # elements of an axis, at most, that take the place of one so narrow
TILED = 1 << 15  # elements from which on arrays are read in tiles, or stretches
COLUMNS = 512  # how many columns one thread accumulates at once
STRIDED = 128  # how many of them if their elements are apart, to stay in the first cache
NARROW_ROW = 256  # elements up to which a row is narrow
NARROW_ROWS = 16  # such rows of a unit
NARROW_LANES = 16  # elements of such a row that are computed side by side
FEW = 12  # elements of a column up to which it does not matter
APART = ("strided", "back")  # accesses along which elements are not loaded in order as one
BLOCKS = (8, 16)  # lengths of an innermost axis whose elements are lanes
Ints = tuple[int, ...]
Axis = tuple[int, Ints]  # its extent, and the stride of each operand, and counter, along it
Axes = tuple[Axis, ...]


@dataclass(frozen=True)
class LoopNest:
    """The form of a kernel and its axes, outermost first.

    units   those that a unit has one index of
    loops   those that a unit runs over
    lanes   the axis within a pixel; of length 1 in other forms
    sizes   of the operands' elements, in bytes
    scales  of the counters: how much each adds from one index of its loop to the next.  A counter
            says where along a loop that windows bound a kernel is; it has strides as operands do,
            and stands behind them
    narrow  whether a unit is rows of few elements, of one loop
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
        """How many elements, or pixels, a unit has."""
        return math.prod(n for n, _ in self.loops)

    @property
    def columns(self) -> int:
        """How many columns, or narrow rows, a unit has at most."""
        if self.narrow:
            return NARROW_ROWS
        apart = self.form == "column" and self.length > FEW and "strided" in self.accesses
        return STRIDED if apart else COLUMNS

    @property
    def innermost(self) -> Ints:
        """The operands' strides from one element, or pixel, to the next."""
        _, strides = self.units[-1] if self.form == "column" else self.loops[-1]
        return strides

    @property
    def accesses(self) -> tuple[str, ...]:
        """How each operand runs along the innermost axis."""
        return tuple(map(self._access, range(len(self.sizes))))

    def moves(self, k: int) -> bool:
        """Whether operand `k` changes within a unit."""
        return any(strides[k] for _, strides in self.loops)

    def alike(self, i: int, k: int) -> bool:
        """Whether operands `i` and `k` lie in memory alike."""
        axes = (*self.units, *self.loops, self.lanes)
        return all(strides[i] == strides[k] for _, strides in axes)

    def _access(self, k: int) -> str:
        if not self.moves(k) and not self.innermost[k]:
            return "fixed"
        lanes, across = self.lanes
        stride, beside = self.innermost[k], lanes * across[k] or self.sizes[k]
        if stride == -self.sizes[k] and lanes == 1:
            return "back"
        return "same" if stride == 0 else "unit" if stride == beside else "strided"


def arrange(
    domain: Domain, operands: Sequence[Node], strides: Sequence[Shape], short: int = 0
) -> LoopNest:
    """Return the loop nest of a kernel for operands with these strides, in bytes.

    short  rows of up to so many elements are computed side by side, as columns, if they are shorter
           than a vector or not contiguous; where it is not 0, the innermost axis of a large map is
           not short
    """
    pairs = ((domain.loops[x], s) for x, s in zip(operands, strides, strict=True))
    by_loop = [{d: s for d, s in zip(*axes, strict=True) if d is not None} for axes in pairs]
    by_loop += map(functools.partial(_counter, domain), domain.bounded)
    scales = tuple(map(operator.getitem, by_loop[len(operands) :], domain.bounded))
    sizes = tuple(x.dtype.itemsize for x in operands)
    every = range(len(domain.extents))
    kept, reduced = sorted(domain.kept), sorted(domain.reduced)
    if not domain.reduces:
        form, units, loops = "map", [], list(every)
    else:
        column = bool(reduced) and every[-1] in domain.kept
        form, units, loops = "column" if column else "row", kept, reduced
    outer, inner = (_collapsed(domain, axes, by_loop) for axes in (units, loops))
    length = math.prod(n for n, _ in inner)
    steps = zip(inner[0][1], sizes, strict=False)
    contiguous = len(inner) == 1 and all(stride in (0, size) for stride, size in steps)
    alone = contiguous and length >= NARROW_LANES
    turned = form == "row" and 1 < length <= short and not alone and outer[-1][0] > 1 and not scales
    single = (1, (0,) * len(by_loop))
    nest = LoopNest("column" if turned else form, outer, inner, single, sizes, scales)
    if turned or any(takes_index(node.op) for node in domain.graph):
        return nest  # random numbers are counted along one flat axis
    if short and form == "row" and len(inner) == 1 and length <= NARROW_ROW and not scales:
        return replace(nest, narrow=True)
    found = _laned(domain, nest, by_loop)
    if found or form != "map":
        return found or nest
    return _lengthened(nest) if short and nest.loops[-1][0] < NARROW else _tiled(nest)


def _counter(domain: Domain, loop: int) -> dict[int, int]:
    """Return the strides of what counts along a loop.

    It counts along the free loops within it as well, so that they may be one axis with it.
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
    """Drop axes of length 1 and merge neighbours that every operand walks as one.

    >>> collapse([(2, (48, 0)), (3, (16, 0)), (4, (4, 4))])
    ((6, (16, 0)), (4, (4, 4)))
    """
    kept: list[Axis] = []
    for n, steps in axes:
        if n == 1:
            continue
        if kept and kept[-1][1] == tuple(step * n for step in steps):
            kept[-1] = (kept[-1][0] * n, steps)
        else:
            kept.append((n, steps))
    return tuple(kept)


def _laned(domain: Domain, nest: LoopNest, by_loop: list[dict[int, int]]) -> LoopNest | None:
    """Return the loop nest in lanes if the innermost axis is a block of channels.

    An axis that merges with its neighbour is none, as a longer one is better, but for kernels that
    run over columns more than once, which no other form can.
    """
    across = tuple(s.get(len(domain.extents) - 1, 0) for s in by_loop)
    beside = all(s in (0, size) for s, size in zip(across, nest.sizes, strict=False))
    if nest.form == "row" or not beside or not set(BLOCKS).intersection(domain.extents[-1:]):
        return None
    if len(domain.extents) - 1 in domain.bounded:
        return None
    lanes = (domain.extents[-1], across)
    if nest.form == "map":
        if nest.loops[-1] != lanes or len(nest.loops) == 1:
            return None
        return replace(nest, form="lane", loops=nest.loops[:-1], lanes=lanes)
    if nest.units[-1] != lanes and not _runs_again(domain):
        return None
    units = _collapsed(domain, sorted(domain.kept)[:-1], by_loop)
    return replace(nest, form="lane", units=units, lanes=lanes)


def _runs_again(domain: Domain) -> bool:
    """Whether what is made of a reduction meets elements along the reduced axes."""
    return any(domain.stages[x] and domain.varies(x) & domain.reduced for x in domain.loops)


def _tiled(nest: LoopNest) -> LoopNest:
    """Return the nest in tiles if an operand's innermost axis is another one than the kernel's.

    A transposed array is read column by column otherwise, and each of its cache lines many times.
    """
    *outer, (columns, across) = nest.loops
    for k, size in enumerate(nest.sizes):
        along = [a for a, (_, strides) in enumerate(outer) if strides[k] == size]
        if across[k] in (0, size) or not along or nest.length < TILED:
            continue
        rows, down = outer[along[-1]]
        high, wide = _tile(rows), _tile(columns)
        if min(high, wide) < NARROW:
            continue
        del outer[along[-1]]
        blocks = [
            (rows // high, tuple(s * high for s in down)),
            (columns // wide, tuple(s * wide for s in across)),
        ]
        return replace(nest, loops=(*outer, *blocks, (high, down), (wide, across)))
    return nest


def _lengthened(nest: LoopNest) -> LoopNest:
    """Return the nest with a longer innermost axis, best one along which an operand is contiguous.

    The short one is run over outside of it, for a stretch that stays in the first cache.
    """
    *outer, short = nest.loops

    def worth(a: int) -> tuple[bool, int]:
        extent, strides = outer[a]
        return any(map(operator.eq, strides, nest.sizes)), extent

    longest = max(range(len(outer)), key=worth, default=-1)
    if longest < 0 or outer[longest][0] <= short[0] or nest.length < TILED:
        return nest
    extent, strides = outer.pop(longest)
    length = _tile(extent, STRIP)
    if length < TILE:  # there is no good divisor
        length = extent
    blocks = (extent // length, tuple(s * length for s in strides))
    return replace(nest, loops=collapse((*outer, blocks, short, (length, strides))))


def _tile(extent: int, most: int = TILE) -> int:
    """Return the largest divisor of an axis's length that is no longer than a tile."""
    return next(n for n in range(min(extent, most), 0, -1) if extent % n == 0)

"""Arrays joined, cut into pieces, repeated and rearranged along axes."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from minigraph.arguments import Axis, Integers, Kind, Sections, Size
from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import BOOL, Array, Node, Shape, Sizes, Spec, SymbolicSize, Tensor, builder
from minigraph.ops.elementwise import advice_on_multiples, promote
from minigraph.ops.shape import (
    Ints,
    broadcast_to,
    expand_dims,
    matrices,
    normalize_axis,
    permute_dims,
    reshape,
)
from minigraph.ops.slicing import Pad, Slice, Windowed, getitem
from minigraph.symbolic import UndecidedSize, assuming_large, positive_part


class Concat(Windowed):
    """The inputs one after the other along `axis`."""

    axis: int

    def infer(self, *xs: Spec) -> Spec:
        a = self.axis
        for x in xs:
            if x.shape[:a] + x.shape[a + 1 :] != xs[0].shape[:a] + xs[0].shape[a + 1 :]:
                shapes = f"{xs[0].shape} and {x.shape}"
                advice = advice_on_multiples([xs[0].shape, x.shape])
                raise ShapeError(f"the shapes differ in an axis other than {a}: {shapes}{advice}")
            if x.dtype != xs[0].dtype:
                raise DTypeError("the dtypes differ")
        size = sum(x.shape[a] for x in xs)
        return Spec((*xs[0].shape[:a], size, *xs[0].shape[a + 1 :]), xs[0].dtype)

    def offsets(self, xs: Sequence[Shape], y: Shape) -> Sequence[Ints]:
        before, after = (0,) * self.axis, (0,) * (len(y) - self.axis - 1)
        starts = itertools.accumulate((x[self.axis] for x in xs[:-1]), initial=0)
        return [(*before, start, *after) for start in starts]

    def forward(self, *xs: Array) -> Array:
        return np.concatenate(xs, self.axis)

    def grad(self, dy: Node, y: Node, *xs: Node) -> tuple[Node, ...]:
        starts = self.offsets([x.shape for x in xs], dy.shape)
        steps = (1,) * dy.ndim
        return tuple(
            Slice(start, tuple(map(operator.add, start, x.shape)), steps)(dy)
            for start, x in zip(starts, xs, strict=True)
        )


def paddings(nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """Split nodes into those that are padded with zeros and the others."""
    padded = [x for x in nodes if isinstance(x.op, Pad) and not x.op.value]
    return padded, [x for x in nodes if not isinstance(x.op, Pad) or x.op.value]


def join(padded: Sequence[Node]) -> Node | None:
    """Return the sum of padded arrays as a concatenation; None if they overlap or leave gaps."""
    pads = [x.op for x in padded if isinstance(x.op, Pad)]
    shape, parts = padded[0].shape, [x.inputs[0] for x in padded]
    try:
        axes = [a for a, n in enumerate(shape) if any(x.shape[a] != n for x in parts)]
        if len(axes) != 1 or any(any(op.interior) for op in pads):
            return None
        (axis,) = axes
        pieces = [(op.low[axis], x.shape[axis], x) for op, x in zip(pads, parts, strict=True)]
        starts, sizes, ordered = zip(*sorted(pieces, key=operator.itemgetter(0, 1)), strict=True)
        *begins, end = itertools.accumulate(sizes, initial=0)
        return Concat(axis)(*ordered) if [*starts] == begins and end == shape[axis] else None
    except UndecidedSize:
        return None


def _parse_arrays(xs: Any) -> tuple[Node, ...]:
    if isinstance(xs, Node) and isinstance(xs.shape[0] if xs.shape else 0, SymbolicSize):
        raise TypeError  # its number of rows is unknown
    nodes = promote(*xs)
    if not nodes:
        raise ValueError
    return nodes


# The rows of an array or an expression are a sequence, too.
ARRAYS = Kind("a sequence of one array or more", _parse_arrays)


@builder
def concat(xs: Annotated[Sequence[Any], ARRAYS], axis: Axis | None = 0) -> Node:
    """Return the arrays joined along `axis`; with None each is flattened first.

    >>> cg.compile([], ops.concat([[1, 2], [3]]))()
    array([1, 2, 3])
    """
    if axis is None:
        xs, axis = tuple(reshape(x, -1) for x in xs), 0
    if len({x.ndim for x in xs}) > 1:
        raise ShapeError("the arrays have different numbers of axes")
    op = Concat(normalize_axis(axis, xs[0].ndim))
    return op(*xs) if len(xs) > 1 else xs[0]


@builder
def stack(xs: Annotated[Sequence[Any], ARRAYS], axis: Axis = 0) -> Node:
    """Return arrays of one shape joined along a new axis, which is `axis` of the result.

    >>> cg.compile([], ops.stack([[1, 2], [3, 4]], axis=1))()
    array([[1, 3],
           [2, 4]])
    """
    if len({x.shape for x in xs}) > 1:
        shapes = " and ".join(dict.fromkeys(str(x.shape) for x in xs))
        raise ShapeError(f"the arrays have different shapes: {shapes}; concat joins such arrays")
    return concat([expand_dims(x, axis) for x in xs], axis)


@builder
def split(x: Tensor, sections_or_indices: Sections, axis: Axis = 0) -> list[Node]:
    """Return pieces of x along `axis`: a number of equal pieces, or pieces that end at indices.

    >>> cg.compile([], ops.split([1, 2, 3, 4], 2))()
    [array([1, 2]), array([3, 4])]
    """
    axis = normalize_axis(axis, x.ndim)
    size = x.shape[axis]
    indices = sections_or_indices
    if isinstance(indices, int):
        count = indices
        if count < 1 or size % count:
            advice = "a list says where sections begin, as in numpy.split"
            if isinstance(size, SymbolicSize) and count > 0:
                advice = f"an input of '{count}*n' rows is a multiple; {advice}"
            raise ShapeError(
                f"axis {axis} of length {size} has no {count} equal sections; {advice}"
            )
        indices = [size // count * i for i in range(1, count)]
    before = (slice(None),) * axis
    pairs = zip([None, *indices], [*indices, None], strict=True)
    return [getitem(x, (*before, slice(a, b))) for a, b in pairs]


@builder
def diff(x: Tensor, axis: Axis = -1, n: Size = 1) -> Node:
    """Return the differences of neighbours along `axis`, `n` times; of bools, whether they differ.

    >>> cg.compile([], ops.diff([1, 4, 9]))()
    array([3, 5])
    """
    axis = normalize_axis(axis, x.ndim)
    with assuming_large():
        n = min(n, x.shape[axis])  # more differences leave no element either
    for _ in range(n):
        before = (slice(None),) * axis
        last, first = x[(*before, slice(1, None))], x[(*before, slice(-1))]
        x = last != first if x.dtype == BOOL else last - first
    return x


@builder
def tile(x: Tensor, repetitions: Sizes) -> Node:
    """Return x repeated as a whole along each axis; missing leading sizes and numbers count as 1.

    >>> cg.compile([], ops.tile([1, 2], 2))()
    array([1, 2, 1, 2])
    """
    ndim = max(x.ndim, len(repetitions))
    shape = (1,) * (ndim - x.ndim) + x.shape
    counts = (1,) * (ndim - len(repetitions)) + repetitions
    pairs = [*zip(counts, shape, strict=True)]
    expanded = reshape(x, [size for n in shape for size in (1, n)])
    repeated = broadcast_to(expanded, [size for pair in pairs for size in pair])
    return reshape(repeated, [r * n for r, n in pairs])


@builder
def repeat(x: Tensor, repeats: Size, axis: Axis | None = None) -> Node:
    """Return x with each element along `axis` `repeats` times; None: of x flattened.

    >>> cg.compile([], ops.repeat([1, 2], 2))()
    array([1, 1, 2, 2])
    """
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    axis = normalize_axis(axis, x.ndim)
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    repeated = broadcast_to(expand_dims(x, axis + 1), (*before, repeats, *after))
    return reshape(repeated, (*before[:-1], before[-1] * repeats, *after))


@builder
def roll(x: Tensor, shift: Integers, axis: Integers | None = None) -> Node:
    """Return x with its elements moved by `shift` along `axis`; those at the end come first.

    axis  None: x is rolled as if it was flattened

    >>> cg.compile([], ops.roll([1, 2, 3], 1))()
    array([3, 1, 2])
    """
    if axis is None:
        return reshape(_rolled(reshape(x, (x.size,)), sum(shift), 0), x.shape)
    try:
        pairs = [*np.broadcast(shift, axis)]
    except ValueError:
        raise ShapeError(f"shift {shift} and axis {axis} differ in length") from None
    for distance, a in pairs:
        x = _rolled(x, int(distance), normalize_axis(int(a), x.ndim))
    return x


def _rolled(x: Node, distance: int, axis: int) -> Node:
    size = x.shape[axis]
    if not size or not (isinstance(size, SymbolicSize) or distance % size):
        return x
    head, tail = split(x, [size - distance % (positive_part(size - 1) + 1)], axis)
    return concat([tail, head], axis)


@builder
def moveaxis(x: Tensor, source: Integers, destination: Integers) -> Node:
    """Return x with the axes `source` moved to `destination`; the others keep their order.

    >>> ops.moveaxis(mg.input("x", (2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    old = [normalize_axis(a, x.ndim) for a in source]
    new = [normalize_axis(a, x.ndim) for a in destination]
    if len(set(old)) < len(old) or len(set(new)) < len(new) or len(old) != len(new):
        raise ShapeError(f"source {source} and destination {destination} do not pair axes")
    moved = dict(zip(new, old, strict=True))
    others = (a for a in range(x.ndim) if a not in old)
    return permute_dims(x, [moved[i] if i in moved else next(others) for i in range(x.ndim)])


@builder
def swapaxes(x: Tensor, axis1: Axis, axis2: Axis) -> Node:
    """Return x with two axes exchanged.

    >>> ops.swapaxes(mg.input("x", (2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    order = list(range(x.ndim))
    a, b = normalize_axis(axis1, x.ndim), normalize_axis(axis2, x.ndim)
    order[a], order[b] = b, a
    return permute_dims(x, order)


@builder
def matrix_transpose(x: Tensor) -> Node:
    """Return x (..., rows, columns) as (..., columns, rows).

    >>> cg.compile([], ops.matrix_transpose([[1, 2], [3, 4]]))()
    array([[1, 3],
           [2, 4]])
    """
    return swapaxes(matrices(x), -1, -2)


@builder
def unstack(x: Tensor, axis: Axis = 0) -> list[Node]:
    """Return the slices of x along `axis`, without that axis.

    >>> cg.compile([], ops.unstack([[1, 2], [3, 4]]))()
    [array([1, 2]), array([3, 4])]
    """
    axis = normalize_axis(axis, x.ndim)
    before = (slice(None),) * axis
    return [getitem(x, (*before, i)) for i in range(x.shape[axis])]


@builder
def flatten(x: Tensor, start_axis: Axis = 0, end_axis: Axis = -1) -> Node:
    """Return x with the axes from `start_axis` to `end_axis` as one, in row-major order.

    >>> cg.compile([], ops.flatten([[1, 2], [3, 4]]))()
    array([1, 2, 3, 4])
    """
    shape = x.shape or (1,)
    start, end = normalize_axis(start_axis, len(shape)), normalize_axis(end_axis, len(shape))
    if start > end:
        raise ShapeError(f"axis {start_axis} comes after axis {end_axis}")
    size = math.prod(shape[start : end + 1])  # not -1, which is ambiguous for an empty batch
    return reshape(x, (*shape[:start], size, *shape[end + 1 :]))

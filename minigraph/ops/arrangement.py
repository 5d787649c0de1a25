"""Functions that repeat, move and take apart what an array holds, made of other ops."""

from __future__ import annotations

import math

from minigraph.arguments import Axis, Integers, Size
from minigraph.errors import ShapeError
from minigraph.graph import Node, SymbolicSize, Tensor, builder
from minigraph.ops.joining import concat, split
from minigraph.ops.shape import (
    broadcast_to,
    expand_dims,
    matrices,
    normalize_axis,
    permute_dims,
    reshape,
)
from minigraph.ops.slicing import getitem
from minigraph.symbolic import positive_part


@builder
def tile(x: Tensor, repetitions: Integers) -> Node:
    """Return x repeated as a whole along each axis; missing leading axes and numbers count as 1.

    >>> cg.compile([], ops.tile([1, 2], 2))()
    array([1, 2, 1, 2])
    """
    if any(n < 0 for n in repetitions):
        raise ShapeError(f"repetitions is {repetitions}; it takes integers >= 0")
    ndim = max(x.ndim, len(repetitions))
    shape = (1,) * (ndim - x.ndim) + x.shape
    counts = (1,) * (ndim - len(repetitions)) + repetitions
    apart = reshape(x, [size for n in shape for size in (1, n)])
    pairs = zip(counts, shape, strict=True)
    repeated = broadcast_to(apart, [size for pair in pairs for size in pair])
    return reshape(repeated, [r * n for r, n in zip(counts, shape, strict=True)])


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

    With None x is flattened meanwhile.

    >>> cg.compile([], ops.roll([1, 2, 3], 1))()
    array([3, 1, 2])
    """
    if axis is None:
        flat = reshape(x, (x.size,))
        for distance in shift:
            flat = _rolled(flat, distance, 0)
        return reshape(flat, x.shape)
    if len(shift) != len(axis) and 1 not in (len(shift), len(axis)):
        raise ShapeError(f"shift {shift} and axis {axis} differ in length")
    count = max(len(shift), len(axis)) if shift and axis else 0
    shifts = shift * count if len(shift) == 1 else shift
    axes = axis * count if len(axis) == 1 else axis
    for distance, a in zip(shifts, axes, strict=True):
        x = _rolled(x, distance, normalize_axis(a, x.ndim))
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
    rest = (a for a in range(x.ndim) if a not in old)
    come_from = dict(zip(new, old, strict=True))
    return permute_dims(x, [come_from[i] if i in come_from else next(rest) for i in range(x.ndim)])


@builder
def swapaxes(x: Tensor, axis1: Axis, axis2: Axis) -> Node:
    """Return x with two axes in each other's place.

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
    """Return what x holds along `axis`, one after the other, without that axis.

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
    size = math.prod(shape[start : end + 1])  # not -1, which an empty batch leaves open
    return reshape(x, (*shape[:start], size, *shape[end + 1 :]))

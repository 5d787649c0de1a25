"""Gathers and scatters along an axis, as in PyTorch: indices may be shorter than the array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigraph.arguments import Axis
from minigraph.errors import ShapeError
from minigraph.graph import Node, Operand, Shape, Tensor, as_node, builder
from minigraph.ops.comparison import where
from minigraph.ops.indexing import AddAlong, PutAlong, TakeAlong, values_for
from minigraph.ops.shape import normalize_axis
from minigraph.ops.slicing import Pad, getitem
from minigraph.symbolic import assuming_large, same_shape


@builder
def gather(x: Tensor, axis: Axis, index: Tensor) -> Node:
    """Return for each row along `axis` its elements at the integers in that row of `index`.

    As `torch.gather`: index has the result's shape.  Along the other axes it may be shorter than x,
    and then applies to the first elements.

    >>> cg.compile([], ops.gather([[1, 2], [3, 4]], 1, [[0, 0], [1, 0]]))()
    array([[1, 1],
           [4, 3]])
    """
    axis = normalize_axis(axis, x.ndim)
    _check_fits(index, x, axis, "x")
    return TakeAlong(axis)(_leading(x, index.shape, axis), index)


@builder
def scatter(x: Tensor, axis: Axis, index: Tensor, src: Operand) -> Node:
    """Return x with the elements of `src` put along `axis` at the integers `index`.

    As `torch.scatter`: index may be shorter than x and src, and then applies to the first elements;
    src may be a number.  Of several elements for one index the last one, in row-major order, stays
    and gets the gradient.

    >>> cg.compile([], ops.scatter([[0, 0], [0, 0]], 1, [[1], [0]], [[5], [7]]))()
    array([[0, 5],
           [7, 0]])
    """
    axis, src = _scatter_operands(x, axis, index, src)
    if index.size == 0:
        return x
    leading = PutAlong(axis)(_leading(x, index.shape, axis), index, src)
    if leading.shape == x.shape:
        return leading
    region = tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(index.shape))
    is_leading = np.zeros(x.shape, bool)
    is_leading[region] = True
    return where(is_leading, _pad_to(leading, x.shape), x)


@builder
def scatter_add(x: Tensor, axis: Axis, index: Tensor, src: Operand) -> Node:
    """Return x with the elements of `src` added along `axis` at the integers `index`.

    As `torch.scatter_add`: index may be shorter than x and src, and then applies to the first
    elements; src may be a number.  The order of the sums is deterministic.

    >>> cg.compile([], ops.scatter_add([0, 0, 0], 0, [0, 2, 2], [1, 2, 3]))()
    array([1, 0, 5])
    """
    axis, src = _scatter_operands(x, axis, index, src)
    sums = AddAlong(axis, x.shape[axis])(src, index)
    if same_shape(sums.shape, x.shape):
        return sums.op(src, index, x)
    return x + _pad_to(sums, x.shape)


def _scatter_operands(x: Node, axis: int, index: Node, src: Any) -> tuple[int, Node]:
    axis = normalize_axis(axis, x.ndim)
    _check_fits(index, x, axis, "x")
    if isinstance(src, bool | int | float):
        return axis, values_for(src, x, index.shape)
    src = as_node(src)
    _check_fits(index, src, None, "src")
    return axis, values_for(_leading(src, index.shape, None), x, index.shape)


def _check_fits(index: Node, x: Node, axis: int | None, name: str) -> None:
    """Raise ShapeError if index is longer than x along an axis other than `axis`."""
    sizes = zip(index.shape, x.shape, strict=False)
    with assuming_large():  # the ops check it again
        longer = any(a != axis and n > m for a, (n, m) in enumerate(sizes))
    if index.ndim != x.ndim or longer:
        besides = "" if axis is None else f" but along axis {axis}"
        raise ShapeError(f"index of shape {index.shape} exceeds {name} of {x.shape}{besides}")


def _leading(x: Node, shape: Sequence[int], axis: int | None) -> Node:
    """Return x cut to `shape` along all axes except `axis`."""
    sizes = (m if a == axis else n for a, (n, m) in enumerate(zip(shape, x.shape, strict=True)))
    return getitem(x, tuple(map(slice, sizes)))


def _pad_to(x: Node, shape: Shape) -> Node:
    """Return x, padded with zeros at the end of each axis to `shape`."""
    if same_shape(x.shape, shape):
        return x
    none = (0,) * x.ndim
    return Pad(none, tuple(m - n for n, m in zip(x.shape, shape, strict=True)), none)(x)

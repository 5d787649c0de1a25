"""Indexing with arrays of integers, NumPy's advanced indexing, and updates at such indices.

All functions use `Take` and its gradient along one axis: axes that are indexed together are merged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import numpy as np

from minigraph.arguments import Axis, Kind, Scalar
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import (
    Constant,
    Node,
    Operand,
    SymbolicSize,
    Tensor,
    as_node,
    builder,
    constant_array,
    from_sizes,
)
from minigraph.ops import slicing
from minigraph.ops.comparison import Maximum, where
from minigraph.ops.creation import arange
from minigraph.ops.elementwise import broadcast_shapes, kind
from minigraph.ops.indexing import PutAlong, Take, TakeBackward, values_for
from minigraph.ops.joining import moveaxis
from minigraph.ops.shape import broadcast_to, normalize_axis, reshape

NUMBERS = (int, np.integer, SymbolicSize)
INDEX_DESCRIPTION = "an index is made of ints, slices, ..., None, and lists and arrays of integers"


@builder
def getitem(x: Tensor, index: Any) -> Node:
    """Return x[index] as NumPy does.

    index  ints, slices, `...` and None, which are known when the graph is built, and lists, arrays
           and expressions of integers, which choose elements: with their axes in place of those
           that they index, or first if a slice, None or `...` stands between them.  A list or array
           of bool, a mask, stands for the indices of its True elements, one for each of its axes.

    An integer out of range is a ShapeError, or a GraphError at the call if its value is known only
    then.  A computed mask is not an index, because it chooses an unknown number of elements: use
    `where`.

    >>> cg.compile([], ops.getitem([[1, 2], [3, 4]], (slice(None), [1, 0])))()
    array([[2, 1],
           [4, 3]])
    """
    items = [_parse_item(i) for i in (index if isinstance(index, tuple) else (index,))]
    if not any(isinstance(item, Node) for item in items):
        return slicing.getitem(x, index)
    items = _expand_masks(x, items)
    # NumPy treats an int beside index arrays as a 0-d array.
    items = [
        as_node(i if isinstance(i, SymbolicSize) else np.int64(i)) if isinstance(i, NUMBERS) else i
        for i in items
    ]
    positions = [i for i, item in enumerate(items) if isinstance(item, Node)]
    indices = [items[i] for i in positions]
    y = slicing.getitem(x, tuple(slice(None) if isinstance(i, Node) else i for i in items))
    dots = x.ndim - sum(item is not None and item is not ... for item in items)  # axes of `...`
    axes = [sum(dots if item is ... else 1 for item in items[:i]) for i in positions]
    if any(b - a > 1 for a, b in pairwise(positions)):
        y = moveaxis(y, axes, range(len(axes)))
        axes = [*range(len(axes))]
    return Take(axes[0])(*_merge_indexed_axes(y, axes[0], indices))


def _parse_item(item: Any) -> Any:
    """Return a part of an index: an int, a slice, `...`, None, or an expression of integers."""
    if item is None or item is ... or isinstance(item, slice):
        return item
    if isinstance(item, bool | np.bool_):
        raise GraphError("a bool is not an index; use where")
    if isinstance(item, NUMBERS):
        return item
    if not (isinstance(item, list | tuple | range) or hasattr(item, "dtype")):
        raise GraphError(f"{INDEX_DESCRIPTION}, not {type(item).__name__}")
    return _index_expression(item)


def _index_expression(value: Any) -> Node:
    """Return a list, array or expression of integers, or a mask with known values, as a node."""
    if not isinstance(value, Node):
        array = constant_array(value)
        value = array if array.size or hasattr(value, "dtype") else array.astype(np.int64)
    indices = as_node(value)
    if kind(indices.dtype) == "b":
        if not isinstance(indices.op, Constant):
            raise GraphError(
                "a computed mask chooses a number of elements that is not known; use where"
            )
    elif kind(indices.dtype) not in "iu":
        raise DTypeError(f"{INDEX_DESCRIPTION}, not of {indices.dtype.name}")
    return indices


def _expand_masks(x: Node, items: Sequence[Any]) -> list[Any]:
    """Return parts of an index of x with the indices of the True elements in place of masks."""
    is_mask = [isinstance(item, Node) and kind(item.dtype) == "b" for item in items]
    counts = [
        0 if item is None or item is ... else item.ndim if mask else 1
        for item, mask in zip(items, is_mask, strict=True)
    ]
    expanded: list[Any] = []
    axis = 0
    for item, mask, count in zip(items, is_mask, counts, strict=True):
        if mask:
            if item.shape != x.shape[axis : axis + count]:
                raise ShapeError(
                    f"a mask of shape {item.shape} does not fit axis {axis} of the array"
                )
            expanded.extend(map(as_node, item.op.value.nonzero()))
        else:
            expanded.append(item)
        axis += x.ndim - sum(counts) if item is ... else count
    return expanded


def _merge_indexed_axes(x: Node, first: int, indices: Sequence[Node]) -> tuple[Node, Node]:
    """Return x with its indexed axes, from `first` on, as one, and the indices into that axis."""
    sizes = x.shape[first : first + len(indices)]
    for size, index in zip(sizes, indices, strict=True):  # other indices are checked at the call
        if isinstance(index.op, Constant) and not isinstance(size, SymbolicSize):
            values = index.op.value
            outside = values[(values < -size) | (values >= size)]
            if outside.size:
                raise ShapeError(f"index {outside[0]} is out of range for an axis of length {size}")
    if len(indices) == 1 and x.size != 0:  # an empty x would not check its index at the call
        return x, indices[0]
    flat_index = as_node(np.int64(0))
    for size, index in zip(sizes, indices, strict=True):
        # The op counts negative indices from the front, and checks all at the call.
        from_front = from_sizes("index", np.arange, (size,), (size,), np.dtype(np.int64))
        flat_index = flat_index * size + Take(0)(from_front, index)
    merged = reshape(x, (*x.shape[:first], math.prod(sizes), *x.shape[first + len(sizes) :]))
    return merged, broadcast_to(flat_index, broadcast_shapes(*(i.shape for i in indices)))


def _parse_indices(value: Any) -> tuple[Node, ...]:
    if not isinstance(value, tuple | list) or not value:
        raise TypeError
    return tuple(map(_index_expression, value))


INDEX = Annotated[Any, Kind("integers", _index_expression)]
INDICES = Kind("a tuple of lists, arrays or expressions of integers", _parse_indices)


@builder
def index_put(
    x: Tensor, indices: Annotated[Any, INDICES], values: Operand, accumulate: bool = False
) -> Node:
    """Return x with `values` at x[indices], or with them added there: `torch.index_put`.

    indices     integers for the first axis, for the second ...; they broadcast against each other.
                A mask with known values stands for the indices of its True elements.
    values      broadcast to the shape of x[indices]
    accumulate  add; else the last of several values for one element stays, and gets the gradient

    The order of sums is always the same.

    >>> cg.compile([], ops.index_put([0, 0, 0], [[0, 2]], [5, 7]))()
    array([5, 0, 7])
    """
    indices = _expand_masks(x, indices)
    if len(indices) > x.ndim:
        raise ShapeError(f"{len(indices)} indices for {x.ndim} axes")
    rows, index = _merge_indexed_axes(x, 0, indices)
    values = values_for(values, x, (*index.shape, *rows.shape[1:]))
    if not index.size:
        return x
    index, values = reshape(index, (index.size,)), reshape(values, (index.size, *rows.shape[1:]))
    if accumulate:
        return reshape(TakeBackward(0, rows.shape)(values, index, rows), x.shape)
    # The number of the last value for each row; -1 for a row without a value.
    none = broadcast_to(as_node(-1), rows.shape[:1])
    last = PutAlong(0)(none, index, arange(index.size))
    new_rows = Take(0)(values, Maximum.of(last, 0))
    is_old = reshape(last < 0, (last.size, *(1,) * (rows.ndim - 1)))
    return reshape(where(is_old, rows, new_rows), x.shape)


@builder
def index_add(x: Tensor, axis: Axis, index: INDEX, source: Tensor, alpha: Scalar = 1) -> Node:
    """Return x with alpha times the rows of `source` along `axis` added at the integers `index`.

    As `torch.index_add`: index is (n,); source has the shape of x with n elements along `axis`.
    The order of the sums is deterministic.

    >>> cg.compile([], ops.index_add([0, 0, 0], 0, [0, 2, 2], [1, 1, 1]))()
    array([1, 0, 2])
    """
    axis = normalize_axis(axis, x.ndim)
    if index.ndim != 1:
        raise ShapeError(f"index is one row of integers, not of shape {index.shape}")
    shape = (*x.shape[:axis], index.size, *x.shape[axis + 1 :])
    if source.shape != shape:
        raise ShapeError(f"source has shape {source.shape}; x and index take {shape}")
    source, add = values_for(source, x, shape), TakeBackward(axis, x.shape)
    return add(source, index, x) if alpha == 1 else (x + add(source, index) * alpha).astype(x.dtype)

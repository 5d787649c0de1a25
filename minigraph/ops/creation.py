"""Arrays that are known when the graph is built."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph.arguments import Offset, Scalar, Size, short_repr
from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import (
    BOOL,
    Array,
    DTypeLike,
    Node,
    Operand,
    Sizes,
    Tensor,
    as_node,
    builder,
    cast,
    constant,
    from_sizes,
    is_symbolic,
)
from minigraph.ops.comparison import where
from minigraph.ops.elementwise import as_operand, kind
from minigraph.ops.shape import broadcast_to, matrices
from minigraph.symbolic import ceil_div, is_integer, positive_part


@builder
def full(shape: Sizes, fill_value: Operand, dtype: DTypeLike | None = None) -> Node:
    """Return `fill_value` broadcast to `shape`; without `dtype` a Python float gives float32.

    >>> cg.compile([], ops.full((2,), 7.0))()
    array([7., 7.], dtype=float32)
    """
    if dtype is None:
        dtype = np.dtype(np.float32) if type(fill_value) is float else as_node(fill_value).dtype
    return broadcast_to(as_operand(fill_value, dtype), shape)


@builder
def zeros(shape: Sizes, dtype: DTypeLike = "float32") -> Node:
    """Return zeros.

    >>> cg.compile([], ops.zeros((2,)))()
    array([0., 0.], dtype=float32)
    """
    return full(shape, 0, dtype)


@builder
def ones(shape: Sizes, dtype: DTypeLike = "float32") -> Node:
    """Return ones.

    >>> cg.compile([], ops.ones((2,)))()
    array([1., 1.], dtype=float32)
    """
    return full(shape, 1, dtype)


@builder
def full_like(x: Tensor, fill_value: Operand, dtype: DTypeLike | None = None) -> Node:
    """Return `fill_value` in the shape of x, and in its dtype if `dtype` is None.

    >>> cg.compile([], ops.full_like([1, 2], 7))()
    array([7, 7])
    """
    return full(x.shape, fill_value, x.dtype if dtype is None else dtype)


@builder
def zeros_like(x: Tensor, dtype: DTypeLike | None = None) -> Node:
    """Return zeros in the shape of x, and in its dtype if `dtype` is None.

    >>> cg.compile([], ops.zeros_like([5.0, 6.0]))()
    array([0., 0.])
    """
    return full_like(x, 0, dtype)


@builder
def ones_like(x: Tensor, dtype: DTypeLike | None = None) -> Node:
    """Return ones in the shape of x, and in its dtype if `dtype` is None.

    >>> cg.compile([], ops.ones_like([5, 6]))()
    array([1, 1])
    """
    return full_like(x, 1, dtype)


@builder
def arange(
    start: Scalar, stop: Scalar | None = None, step: Scalar = 1, dtype: DTypeLike | None = None
) -> Node:
    """Return the numbers from `start` up to, without, `stop`; one number is the stop, from 0.

    Without `dtype` integers give int64 and floats float32.

    >>> cg.compile([], ops.arange(2, 8, 3))()
    array([2, 5])
    """
    if stop is None:
        start, stop = 0, start
    bounds = (start, stop, step)
    if dtype is None:
        dtype = np.dtype(np.int64 if all(map(is_integer, bounds)) else np.float32)
    if is_symbolic(bounds):
        count = positive_part(ceil_div(stop - start, step))
        return from_sizes("arange", np.arange, bounds, (count,), dtype)
    try:
        if step == 0 or not all(map(math.isfinite, bounds)):
            raise ValueError("start, stop and step are finite, and step is not 0")
        numbers = np.arange(*bounds)
    except (ValueError, OverflowError) as error:
        raise ShapeError(f"the numbers in steps of {short_repr(step)}: {error}") from None
    if numbers.dtype == object:  # of integers beyond 64 bits
        numbers = numbers.astype(np.float64)
    return constant(cast(numbers, dtype))


@builder
def linspace(
    start: float, stop: float, num: Size, dtype: DTypeLike = "float32", endpoint: bool = True
) -> Node:
    """Return `num` evenly spaced numbers from `start` to `stop`, the last if `endpoint`.

    For an integer dtype they are rounded down, as in NumPy.

    >>> cg.compile([], ops.linspace(0, 1, 3))()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    if not (math.isfinite(start) and math.isfinite(stop)):
        raise ShapeError(f"start is {start}, stop is {stop}; they are finite numbers")
    try:
        arguments = (start, stop, num, endpoint, dtype)
        return from_sizes("linspace", _evenly_spaced, arguments, (num,), dtype)
    except DTypeError:
        raise
    except (ValueError, OverflowError, IndexError) as error:
        raise ShapeError(f"num is {num}: {error}") from None


@builder
def eye(
    n_rows: Size, n_cols: Size | None = None, k: Offset = 0, dtype: DTypeLike = "float32"
) -> Node:
    """Return zeros (n_rows, n_cols) with ones on the diagonal that is `k` above the main one.

    n_cols  None: n_rows

    >>> cg.compile([], ops.eye(2))()
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    columns = n_rows if n_cols is None else n_cols
    mask = from_sizes("eye", _on_diagonal, (n_rows, columns, k), (n_rows, columns), BOOL)
    return mask.astype(dtype)


@builder
def tril(x: Tensor, k: Offset = 0) -> Node:
    """Return matrices x (..., rows, columns) with zeros above diagonal `k`.

    >>> cg.compile([], ops.tril([[1, 2], [3, 4]]))()
    array([[1, 0],
           [3, 4]])
    """
    x = matrices(x)
    return where(lower_triangle(x.shape[-2], x.shape[-1], k), x, zeros((), x.dtype))


@builder
def triu(x: Tensor, k: Offset = 0) -> Node:
    """Return matrices x (..., rows, columns) with zeros below diagonal `k`.

    >>> cg.compile([], ops.triu([[1, 2], [3, 4]]))()
    array([[1, 2],
           [0, 4]])
    """
    x = matrices(x)
    return where(lower_triangle(x.shape[-2], x.shape[-1], k - 1), zeros((), x.dtype), x)


def lower_triangle(rows: int, columns: int, k: int = 0) -> Node:
    """Return the mask of a matrix (rows, columns) on or below its diagonal `k`."""
    return from_sizes("triangle", _below, (rows, columns, k), (rows, columns), BOOL)


def _on_diagonal(rows: int, columns: int, k: int) -> Array:
    """Return the mask of a matrix's diagonal `k`."""
    return _below(rows, columns, k) & ~_below(rows, columns, k - 1)


def _below(rows: int, columns: int, k: int) -> Array:
    """Return the mask of a matrix on or below its diagonal `k`."""
    if rows * columns > np.iinfo(np.int64).max:
        raise ShapeError(f"{rows} x {columns} elements are too many")
    return np.arange(columns) <= np.arange(rows)[:, None] + max(-rows - 1, min(k, columns))


def _evenly_spaced(start: float, stop: float, num: int, endpoint: bool, dtype: Any) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = np.linspace(start, stop, num, endpoint)
    return numbers if kind(dtype) == "f" else np.floor(numbers)

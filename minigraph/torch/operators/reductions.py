"""Rows of matrix products, and of operators that reduce, scan or sort axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from minigraph import ops
from minigraph.graph import FLOATS, Node
from minigraph.ops.elementwise import widen
from minigraph.torch.operators.table import DTYPES, ROWS, Row, row, rows


def _axes(axes: Any) -> Any:
    """Return axes as `minigraph.ops` takes them; torch's empty list means all axes."""
    if axes is None or isinstance(axes, int):
        return axes
    return tuple(axes) or None


def _reduction(function: Row) -> Row:
    def reduce(
        x: Node, axes: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None
    ) -> Node:
        x = x if dtype is None else ops.astype(x, DTYPES[dtype])
        return function(x, _axes(axes), keepdim) if x.ndim else function(x)

    return reduce


def _extremum(position_of: Row) -> Row:
    """Return the row of an extremum along an axis; its gradient goes to one element.

    position_of  argmax or argmin
    """

    def reduce(x: Node, axis: int, keepdim: bool = False) -> tuple[Node, Node]:
        if not x.ndim:
            return x, ops.zeros((), "int64")
        return _gathered(x, position_of(x, axis, True), axis, keepdim)

    return reduce


def _gathered(x: Node, positions: Node, axis: int, keepdim: bool) -> tuple[Node, Node]:
    """Return the elements at positions along an axis, and the positions."""
    elements = ops.take_along_axis(x, positions, axis), positions
    return elements if keepdim else (ops.squeeze(elements[0], axis), ops.squeeze(positions, axis))


def _moment(function: Row) -> Row:
    def reduce(x: Node, axes: Any = None, *, correction: Any = None, keepdim: bool = False) -> Node:
        return function(x, _axes(axes), 1 if correction is None else correction, keepdim)

    return reduce


def _scan(function: Row) -> Row:
    def scan(x: Node, axis: int, dtype: torch.dtype | None = None) -> Node:
        return function(x, axis, DTYPES[dtype] if dtype else None)

    return scan


def _softmax(function: Row) -> Row:
    def apply(x: Node, axis: int, widens: bool) -> Node:  # the result's dtype tells
        return function(x, axis) if x.ndim else function(ops.expand_dims(x, 0), 0)[0]

    return apply


rows(
    {
        "sum sum.dim_IntList": _reduction(ops.sum),
        "mean mean.dim": _reduction(ops.mean),
        "prod prod.dim_int": _reduction(ops.prod),
        "amax max": _reduction(ops.max),
        "amin min": _reduction(ops.min),
        "any any.dim any.dims": _reduction(ops.any),
        "all all.dim all.dims": _reduction(ops.all),
        "argmax": _reduction(ops.argmax),
        "argmin": _reduction(ops.argmin),
        "max.dim": _extremum(ops.argmax),
        "min.dim": _extremum(ops.argmin),
        "var.correction": _moment(ops.var),
        "std.correction": _moment(ops.std),
        "cumsum": _scan(ops.cumsum),
        "cumprod": _scan(ops.cumprod),
        "_softmax": _softmax(ops.softmax),
        "_log_softmax": _softmax(ops.log_softmax),
        "topk": ops.topk,
        "linalg_vector_norm": lambda x, p, axes, keepdim, **unused: ops.norm(
            x, p, _axes(axes), keepdim
        ),
        "_cdist_forward": lambda x, y, p, *unused: ops.norm(
            ops.expand_dims(x, -2) - ops.expand_dims(y, -3), p, -1
        ),
        "mm bmm matmul dot mv": ops.matmul,
        "linear": lambda x, w, bias=None: (  # PyTorch traces no bias for a vector of weights
            ops.linear(x, w, bias) if w.ndim > 1 else ops.matmul(x, w)
        ),
        "outer": ops.outer,
        "einsum": lambda equation, operands, **unused: ops.einsum(equation, *operands),
    }
)
rows({"logsumexp": _reduction(ops.logsumexp)}, promotes=True)


@row("_safe_softmax")
def _safe_softmax(x: Node, axis: int, dtype: torch.dtype | None = None) -> Node:
    x = x if dtype is None else ops.astype(x, DTYPES[dtype])
    masked = ops.all(x == -math.inf, axis, True)  # torch gives 0 for a row of -inf alone
    return ops.where(masked, 0, ops.softmax(ops.where(masked, 0, x), axis))


def _and_mean(function: Row) -> Row:
    def reduce(
        x: Node, axes: Any = None, *, correction: Any = None, keepdim: bool = False
    ) -> tuple[Node, Node]:
        moment = _moment(function)(x, axes, correction=correction, keepdim=keepdim)
        return moment, ops.mean(x, _axes(axes), keepdim)

    return reduce


rows({"var_mean.correction": _and_mean(ops.var), "std_mean.correction": _and_mean(ops.std)})


@row("sort", "sort.stable")
def _sort(x: Node, dim: int = -1, descending: bool = False, **unused: Any) -> tuple[Node, Node]:
    if not x.ndim:
        return x, ops.zeros((), "int64")
    order = ops.argsort(x, dim, descending)
    return ops.take_along_axis(x, order, dim), order


@row("addmm", "baddbmm", "addmv")
def _addmm(bias: Node, x: Node, y: Node, beta: Any = 1, alpha: Any = 1) -> Node:
    if bias.dtype not in FLOATS:  # torch takes numbers as integers then
        beta, alpha = int(beta), int(alpha)
    product = ops.matmul(x, y)
    product = product if alpha == 1 else product * alpha
    return product + (bias if beta == 1 else bias * beta)


@row("addbmm")
def _addbmm(bias: Node, x: Node, y: Node, beta: Any = 1, alpha: Any = 1) -> Node:
    b, n, m = x.shape  # the sum over b is one product
    x = ops.reshape(ops.permute_dims(x, (1, 0, 2)), (n, b * m))
    return _addmm(bias, x, ops.reshape(y, (b * m, y.shape[2])), beta, alpha)


@row("_grouped_mm")
def grouped_products(
    x: Node, weights: Node, offsets: Any = None, bias: Any = None, dtype: torch.dtype | None = None
) -> Node:
    """Return the products of groups of rows (rows, n), each with its matrix (groups, n, m).

    offsets  end of each group; rows after the last one give zeros

    They are one product with the stacked matrices: a row is zero outside its group's block.
    """
    if offsets is None or bias is not None or (x.ndim, weights.ndim) != (2, 3):
        raise NotImplementedError("grouped products other than of rows and matrices")
    groups, n, m = weights.shape
    group = ops.searchsorted(offsets, ops.arange(x.shape[0], dtype=offsets.dtype), "right")
    in_group = group[:, None, None] == ops.arange(groups)[:, None]
    blocks = ops.reshape(ops.where(in_group, x[:, None, :], 0), (-1, groups * n))
    return ops.matmul(blocks, ops.reshape(weights, (groups * n, m)))


# `transformers` calls its fallback for dtypes and versions without PyTorch's operator.
ROWS["transformers.grouped_mm_fallback.default"] = grouped_products


@row("_trilinear")
def _trilinear(x: Node, y: Node, z: Node, *axes: Any) -> Node:
    """Return sums of x * y * z; `axes` are those that each operand lacks, and the summed ones."""
    *missing, summed, _ = axes
    letters = "abcdefgh"[: x.ndim + len(missing[0])]
    removed = (*missing, summed)
    terms = ["".join(c for i, c in enumerate(letters) if i not in axes) for axes in removed]
    return ops.einsum(f"{','.join(terms[:3])}->{terms[3]}", x, y, z)


@row("_pdist_forward")
def _pdist(x: Node, p: float) -> Node:
    first, second = np.triu_indices(x.shape[0], 1)
    return ops.norm(ops.take(x, first, 0) - ops.take(x, second, 0), p, -1)


@row("logcumsumexp")
def _logcumsumexp(x: Node, axis: int) -> Node:
    if not x.ndim:
        return x
    rows = ops.moveaxis(widen(x), axis, 0)
    first = ops.full(rows.shape[1:], -math.inf, rows.dtype)
    _, y = ops.scan(lambda before, row: (ops.logaddexp(before, row),) * 2, first, rows)
    return ops.moveaxis(y, 0, axis)


def _running(comes_first: Row) -> Row:
    """Return the row of running extrema along an axis, and of their last positions."""

    def scan(x: Node, axis: int) -> tuple[Node, Node]:
        if not x.ndim:
            return x, ops.zeros((), "int64")
        rows = ops.stop_gradient(ops.moveaxis(x, axis, 0))

        def step(before: tuple[Node, Node], inputs: tuple[Node, Node]) -> Any:
            row, i = inputs
            is_new = comes_first(row, before[0]) | (row != row)  # NaN stays the extremum
            value, position = ops.where(is_new, row, before[0]), ops.where(is_new, i, before[1])
            return (value, position), position

        first = rows[0], ops.zeros(rows.shape[1:], "int64")
        _, positions = ops.scan(step, first, (rows, ops.arange(rows.shape[0])))
        return _gathered(x, ops.moveaxis(positions, 0, axis), axis, True)

    return scan


rows({"cummax": _running(ops.greater_equal), "cummin": _running(ops.less_equal)})


@row("histc")
def _histogram(x: Node, bins: int = 100, low: Any = 0, high: Any = 0) -> Node:
    """Return how many elements are in each of the equal bins from low to high."""
    x = ops.stop_gradient(ops.flatten(x))
    if low == high:
        low, high = ops.min(x), ops.max(x)
        margin = ops.astype(low == high, x.dtype)
        low, high = low - margin, high + margin
    indices = ops.astype(ops.clip((x - low) * bins / (high - low), 0, bins - 1), "int64")
    is_inside = (x >= low) & (x <= high)
    counts = ops.astype(is_inside, x.dtype)
    return ops.index_add(ops.zeros(bins, x.dtype), 0, ops.where(is_inside, indices, 0), counts)


# ---------------------------------------------------------------- positions in sorted rows


@row("kthvalue")
def _kth_value(x: Node, k: int, axis: int = -1, keepdim: bool = False) -> tuple[Node, Node]:
    return _ranked(x, axis, keepdim, lambda *unused: k - 1)


def _median(skips_nan: bool) -> Row:
    def rank(count: Node, size: Any) -> Node:
        middle = ops.maximum(count - 1, 0) // 2
        return middle if skips_nan else ops.where(count == size, middle, size - 1)  # NaN is last

    def median(x: Node, axis: int | None = None, keepdim: bool = False) -> Any:
        if axis is None:
            return median(ops.flatten(x), 0)[0]
        return _ranked(x, axis, keepdim, rank)

    return median


rows({"median median.dim": _median(False), "nanmedian nanmedian.dim": _median(True)})


def _ranked(x: Node, axis: int, keepdim: bool, rank: Callable[..., Any]) -> tuple[Node, Node]:
    """Return the elements of a rank along an axis, and their positions.

    rank  a function of the count of elements that are not NaN in each row, and of the row's size
    """
    if not x.ndim:
        return x, ops.zeros((), "int64")
    count = ops.sum(ops.astype(x == x, "int64"), axis, True)
    ranks = ops.broadcast_to(rank(count, x.shape[axis]), count.shape)
    positions = ops.take_along_axis(ops.argsort(x, axis), ranks, axis)
    return _gathered(x, positions, axis, keepdim)


def _searchsorted(rows: Node, x: Any, right: bool, side: str | None, order: Any) -> Node:
    rows = rows if order is None else ops.take_along_axis(rows, order, -1)
    return ops.searchsorted(rows, x, "right" if right or side == "right" else "left")


rows(
    {
        "searchsorted.Tensor searchsorted.Scalar": (
            lambda rows, x, right=False, side=None, sorter=None, **unused: _searchsorted(
                rows, x, right, side, sorter
            )
        ),
        "bucketize.Tensor bucketize.Scalar": (
            lambda x, rows, right=False, **unused: _searchsorted(rows, x, right, None, None)
        ),
    }
)

"""Rows of operators that reduce, scan or sort axes."""

from __future__ import annotations

import math
from typing import Any

import torch

from minigraph import ops
from minigraph.graph import FLOATS, Node
from minigraph.torch.operators.table import DTYPES, Row, row, rows


def _axes(axes: Any) -> Any:
    """Return axes as `minigraph.ops` takes them: torch's empty list is all of them."""
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
        "logsumexp": _reduction(lambda x, *how: ops.logsumexp(_as_float(x), *how)),
    }
)


def _as_float(x: Node) -> Node:
    return x if x.dtype in FLOATS else ops.astype(x, "float32")


@row("_safe_softmax")
def _safe_softmax(x: Node, axis: int, dtype: torch.dtype | None = None) -> Node:
    x = x if dtype is None else ops.astype(x, DTYPES[dtype])
    masked = ops.all(x == -math.inf, axis, True)  # all of it, where torch gives 0
    return ops.where(masked, 0, ops.softmax(ops.where(masked, 0, x), axis))


@row("max.dim")
def _max(x: Node, axis: int, keepdim: bool = False) -> tuple[Node, Node]:
    if not x.ndim:
        return x, ops.zeros((), "int64")
    return ops.max(x, axis, keepdim), ops.argmax(x, axis, keepdim)


@row("min.dim")
def _min(x: Node, axis: int, keepdim: bool = False) -> tuple[Node, Node]:
    if not x.ndim:
        return x, ops.zeros((), "int64")
    return ops.min(x, axis, keepdim), ops.argmin(x, axis, keepdim)


def _moment(function: Row) -> Row:
    def reduce(
        x: Node, axes: Any = None, unbiased: Any = True, keepdim: bool = False, **named: Any
    ) -> Node:
        if isinstance(axes, bool):  # the overload without axes
            axes, unbiased = None, axes
        correction = named.get("correction", 1 if unbiased else 0)
        return function(x, _axes(axes), 1 if correction is None else correction, keepdim)

    return reduce


rows(
    {
        "var var.dim var.correction": _moment(ops.var),
        "std std.dim std.correction": _moment(ops.std),
    }
)


@row("var_mean.correction")
def _var_mean(
    x: Node, axes: Any = None, correction: Any = 1, keepdim: bool = False
) -> tuple[Node, Node]:
    return ops.var(x, _axes(axes), correction, keepdim), ops.mean(x, _axes(axes), keepdim)


@row("norm.ScalarOpt_dim", "linalg_vector_norm", "norm.Scalar")
def _norm(x: Node, p: Any = 2, axes: Any = None, keepdim: bool = False, **unused: Any) -> Node:
    return ops.norm(x, 2 if p is None else p, _axes(axes), keepdim)


@row("cumsum")
def _cumsum(x: Node, axis: int, dtype: torch.dtype | None = None) -> Node:
    return ops.cumsum(x, axis, DTYPES[dtype] if dtype else None)


@row("cumprod")
def _cumprod(x: Node, axis: int, dtype: torch.dtype | None = None) -> Node:
    return ops.cumprod(x, axis, DTYPES[dtype] if dtype else None)


def _softmax(function: Row) -> Row:
    def along(x: Node, axis: int, dtype: Any = None) -> Node:
        # The last argument is a dtype, or whether bfloat16 becomes float32, which the result shows.
        return (
            function(ops.astype(x, DTYPES[dtype]) if isinstance(dtype, torch.dtype) else x, axis)
            if x.ndim
            else (function(ops.expand_dims(x, 0), 0)[0])
        )

    return along


rows(
    {
        "softmax.int _softmax": _softmax(ops.softmax),
        "log_softmax.int _log_softmax": _softmax(ops.log_softmax),
    }
)


@row("sort", "sort.stable")
def _sort(
    x: Node, dim: int = -1, descending: bool = False, stable: Any = True
) -> tuple[Node, Node]:
    order = _argsort(x, dim, descending)
    return (ops.take_along_axis(x, order, dim) if x.ndim else x), order


@row("argsort", "argsort.stable")
def _argsort(x: Node, dim: int = -1, descending: bool = False, stable: Any = True) -> Node:
    return ops.argsort(x, dim, descending) if x.ndim else ops.zeros((), "int64")


@row("topk")
def _topk(x: Node, k: int, axis: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return ops.topk(x, k, axis, largest, sorted)

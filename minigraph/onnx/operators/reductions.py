"""Rows of operators that reduce, scan or sort axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from minigraph import ops
from minigraph.graph import FLOATS, Node, limits
from minigraph.onnx.operators.table import Row, row, rows
from minigraph.onnx.values import integer, integers


def _reduction(function: Callable[..., Node]) -> Row:
    def reduce(x: Node, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Node:
        chosen = integers(axes) if isinstance(axes, Node) else axes
        if not chosen:
            chosen = [] if noop_with_empty_axes else [*range(x.ndim)]
        y = function(x, tuple(chosen), bool(keepdims))
        return y if y.dtype == x.dtype else ops.astype(y, x.dtype)

    return reduce


def _extreme(function: Callable[..., Node], of_none: int) -> Callable[..., Node]:
    """Return a maximum or a minimum; of nothing it is the number that changes no other's."""

    def reduce(x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
        small = ops.astype(x, "uint8") if x.dtype == bool else x
        if x.size != 0:
            return function(small, axes, keepdims)
        ends = (-math.inf, math.inf) if x.dtype in FLOATS else limits(x.dtype)
        shape = ops.sum(x, axes, keepdims).shape
        return ops.full(shape, ends[of_none], x.dtype)

    return reduce


def _log_sum_exp(x: Node, *how: Any) -> Node:
    return ops.logsumexp(_real(x), *how) if x.size != 0 else ops.log(ops.sum(_real(x), *how))


rows(
    {
        "ReduceSum": _reduction(ops.sum),
        "ReduceMean": _reduction(ops.mean),
        "ReduceProd": _reduction(ops.prod),
        "ReduceMax": _reduction(_extreme(ops.max, 0)),
        "ReduceMin": _reduction(_extreme(ops.min, 1)),
        "ReduceL1": _reduction(lambda x, *how: ops.sum(ops.abs(x), *how)),
        "ReduceL2": _reduction(lambda x, *how: ops.sqrt(ops.sum(_real(x * x), *how))),
        "ReduceSumSquare": _reduction(lambda x, *how: ops.sum(x * x, *how)),
        "ReduceLogSum": _reduction(lambda x, *how: ops.log(_real(ops.sum(x, *how)))),
        "ReduceLogSumExp": _reduction(_log_sum_exp),
    }
)


def _real(x: Node) -> Node:
    return x if x.dtype in FLOATS else ops.astype(x, "float64")


def _place_of(function: Callable[..., Node]) -> Row:
    def find(x: Node, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Node:
        if not select_last_index:
            return function(x, axis, bool(keepdims))
        return x.shape[axis] - 1 - function(ops.flip(x, axis), axis, bool(keepdims))

    return find


rows({"ArgMax": _place_of(ops.argmax), "ArgMin": _place_of(ops.argmin)})


def _cumulative(function: Callable[..., Node]) -> Row:
    def along(x: Node, axis: Node, exclusive: int = 0, reverse: int = 0) -> Node:
        at = integer(axis) % x.ndim
        x = ops.flip(x, at) if reverse else x
        y = function(x, at, x.dtype, bool(exclusive))
        y = y[(*(slice(None),) * at, slice(0, x.shape[at]))] if exclusive else y
        return ops.flip(y, at) if reverse else y

    return along


rows({"CumSum": _cumulative(ops.cumulative_sum), "CumProd": _cumulative(ops.cumulative_prod)})
rows(
    {
        "Softmax": lambda x, axis=-1: ops.softmax(x, axis),
        "LogSoftmax": lambda x, axis=-1: ops.log_softmax(x, axis),
        "Hardmax": lambda x, axis=-1: ops.moveaxis(
            ops.one_hot(ops.argmax(x, axis), x.shape[axis], x.dtype), -1, axis
        ),
        "TopK": lambda x, k, axis=-1, largest=1, sorted=1: ops.topk(
            x, integer(k), axis, bool(largest), True
        ),
    }
)


@row("LpNormalization")
def _lp_normalization(x: Node, axis: int = -1, p: int = 2) -> Node:
    size = ops.norm(x, p, axis, True)
    return ops.where(size == 0, 0, x / size)

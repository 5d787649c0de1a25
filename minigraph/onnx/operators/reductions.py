"""Rows of matrix products, and of operators that reduce, scan or sort axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import FLOATS, Node, constant, limits
from minigraph.onnx.operators.table import MICROSOFT, Row, row, rows
from minigraph.onnx.values import integer, integers
from minigraph.ops.fourier import fourier_transform


@row("Gemm")
def _gemm(
    a: Node, b: Node, c: Node | None = None, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0,
) -> Node:  # fmt: skip
    a = a.T if transA else a
    if transB and alpha == 1 and beta == 1 and c is not None and c.shape == b.shape[:1]:
        return ops.linear(a, b, c)
    y = ops.matmul(a, b.T if transB else b)
    y = y if alpha == 1 else _times(y, alpha)
    if c is None or not beta:
        return y
    return y + (c if beta == 1 else _times(c, beta))


def _times(x: Node, factor: float) -> Node:
    return ops.astype(x * factor, x.dtype)


@row(f"{MICROSOFT}.FusedMatMul")
def _fused_matmul(
    a: Node, b: Node, alpha: float = 1.0, transA: int = 0, transB: int = 0,
    transBatchA: int = 0, transBatchB: int = 0,
) -> Node:  # fmt: skip
    a, b = (ops.moveaxis(x, 0, -2) if t else x for x, t in ((a, transBatchA), (b, transBatchB)))
    a, b = (ops.matrix_transpose(x) if t else x for x, t in ((a, transA), (b, transB)))
    y = ops.matmul(a, b)
    return y if alpha == 1 else y * alpha


@row("DFT")
def _dft(
    x: Node, length: Node | None = None, axes: Node | None = None, axis: int | None = None,
    inverse: int = 0, onesided: int = 0,
) -> Node:  # fmt: skip
    if axis is None and axes is None and x.ndim > 3:  # 1 or -2, depending on the opset
        raise GraphError("it has no axis")
    axis = (integer(axes) if axes is not None else -2 if axis is None else axis) % x.ndim
    size = x.shape[axis]
    halved = bool(inverse and onesided)  # x is one half of a real signal's spectrum
    n = 2 * (size - 1) if halved else size
    n = n if length is None else integer(length)
    parts = fourier_transform(
        ops.unstack(x, -1), axis, n, inverse=bool(inverse), onesided=bool(onesided),
        scale=1 / n if inverse else 1.0,
    )  # fmt: skip
    return ops.stack(parts, -1)


@row("STFT")
def _stft(
    x: Node, step: Node, window: Node | None = None, length: Node | None = None, onesided: int = 1
) -> Node:
    x = x if x.ndim == 3 else ops.expand_dims(x, -1)  # as PyTorch writes it
    size = integer(length) if length is not None else x.shape[1] if window is None else window.size
    first = np.arange(0, x.shape[1] - size + 1, integer(step))
    frames = ops.take(x, constant(first[:, None] + np.arange(size)), 1)
    frames = frames if window is None else frames * ops.reshape(window, (-1, 1))
    return _dft(frames, axis=2, onesided=onesided)


def _reduction(function: Callable[..., Node]) -> Row:
    def reduce(x: Node, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Node:
        reduced_axes = integers(axes) if isinstance(axes, Node) else axes
        if not reduced_axes:
            reduced_axes = [] if noop_with_empty_axes else [*range(x.ndim)]
        y = function(x, tuple(reduced_axes), bool(keepdims))
        return y if y.dtype == x.dtype else ops.astype(y, x.dtype)

    return reduce


def _extreme(function: Callable[..., Node], of_none: int) -> Callable[..., Node]:
    """Return a maximum or a minimum that is defined for empty arrays.

    of_none  index of its value for no elements in (lowest, highest)
    """

    def reduce(x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
        small = ops.astype(x, "uint8") if x.dtype == bool else x
        if x.size != 0:
            return function(small, axes, keepdims)
        neutral = (-math.inf, math.inf) if x.dtype in FLOATS else limits(x.dtype)
        shape = ops.sum(x, axes, keepdims).shape
        return ops.full(shape, neutral[of_none], x.dtype)

    return reduce


rows(
    {
        "ReduceSum": _reduction(ops.sum),
        "ReduceMean": _reduction(ops.mean),
        "ReduceProd": _reduction(ops.prod),
        "ReduceMax": _reduction(_extreme(ops.max, 0)),
        "ReduceMin": _reduction(_extreme(ops.min, 1)),
        "ReduceL1": _reduction(lambda x, *axes: ops.sum(ops.abs(x), *axes)),
        "ReduceL2": _reduction(lambda x, *axes: ops.sqrt(ops.sum(_real(x * x), *axes))),
        "ReduceSumSquare": _reduction(lambda x, *axes: ops.sum(x * x, *axes)),
        "ReduceLogSum": _reduction(lambda x, *axes: ops.log(_real(ops.sum(x, *axes)))),
        "ReduceLogSumExp": _reduction(lambda x, *axes: ops.logsumexp(_real(x), *axes)),
    }
)


def _real(x: Node) -> Node:
    return x if x.dtype in FLOATS else ops.astype(x, "float64")


def _position_of(function: Callable[..., Node]) -> Row:
    def find(x: Node, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Node:
        if not select_last_index:
            return function(x, axis, bool(keepdims))
        return x.shape[axis] - 1 - function(ops.flip(x, axis), axis, bool(keepdims))

    return find


rows({"ArgMax": _position_of(ops.argmax), "ArgMin": _position_of(ops.argmin)})


def _cumulative(function: Callable[..., Node]) -> Row:
    def scan(x: Node, axis: Node, exclusive: int = 0, reverse: int = 0) -> Node:
        scan_axis = integer(axis) % x.ndim
        x = ops.flip(x, scan_axis) if reverse else x
        y = function(x, scan_axis, x.dtype, bool(exclusive))
        y = y[(*(slice(None),) * scan_axis, slice(0, x.shape[scan_axis]))] if exclusive else y
        return ops.flip(y, scan_axis) if reverse else y

    return scan


rows({"CumSum": _cumulative(ops.cumulative_sum), "CumProd": _cumulative(ops.cumulative_prod)})
rows(
    {
        "MatMul": ops.matmul,
        "Einsum": lambda *xs, equation: ops.einsum(equation, *xs),
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

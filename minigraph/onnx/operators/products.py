"""Rows of products of matrices, those with matrices of sines and cosines included."""

from __future__ import annotations

import numpy as np

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import Node, constant
from minigraph.onnx.operators.table import MICROSOFT, row, rows
from minigraph.onnx.values import integer

rows(
    {
        "MatMul": ops.matmul,
        "Einsum": lambda *xs, equation: ops.einsum(equation.replace(" ", ""), *xs),
    }
)


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
    if transBatchA or transBatchB:
        raise GraphError("it has no transBatchA and transBatchB")
    a, b = (ops.matrix_transpose(x) if t else x for x, t in ((a, transA), (b, transB)))
    y = ops.matmul(a, b)
    return y if alpha == 1 else y * alpha


@row("DFT")
def _dft(
    x: Node, length: Node | None = None, along: Node | None = None, axis: int | None = None,
    inverse: int = 0, onesided: int = 0,
) -> Node:  # fmt: skip
    if axis is None and along is None and x.ndim > 3:  # 1 or -2, depending on the opset
        raise GraphError("it says no axis")
    at = (integer(along) if along is not None else -2 if axis is None else axis) % x.ndim
    given = x.shape[at]
    halved = bool(inverse and onesided)  # of a real signal, given is one half
    n = 2 * (given - 1) if halved else given
    n = n if length is None else integer(length)
    used = min(given, n // 2 + 1 if halved else n)
    x = x[(*(slice(None),) * at, slice(0, used))]
    rows, columns = np.arange(used)[:, None], np.arange(n // 2 + 1 if onesided > inverse else n)
    angle = (2 if inverse else -2) * np.pi / n * (rows * columns % n)
    weight = np.where(halved & (rows > 0) & (2 * rows < n), 2, 1) / (n if inverse else 1)
    cos, sin = (constant(f(angle) * weight, x.dtype) for f in (np.cos, np.sin))
    real, *more = (ops.moveaxis(part, at, -1) for part in ops.unstack(x, -1))
    re, im = real @ cos, real @ sin
    for imaginary in more:
        re, im = re - imaginary @ sin, im + imaginary @ cos
    parts = [re] if halved else [re, im]
    return ops.stack([ops.moveaxis(part, -1, at) for part in parts], -1)


@row("STFT")
def _stft(
    x: Node, step: Node, window: Node | None = None, length: Node | None = None, onesided: int = 1
) -> Node:
    size = integer(length) if length is not None else x.shape[1] if window is None else window.size
    first = np.arange(0, x.shape[1] - size + 1, integer(step))
    frames = ops.take(x, constant(first[:, None] + np.arange(size)), 1)
    frames = frames if window is None else frames * ops.reshape(window, (-1, 1))
    return _dft(frames, axis=2, onesided=onesided)

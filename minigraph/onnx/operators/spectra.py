"""Rows of operators of signals: Fourier transforms, as products of matrices."""

from __future__ import annotations

import numpy as np

from minigraph import ops
from minigraph.graph import Node, constant
from minigraph.onnx.operators.table import row
from minigraph.onnx.values import integer


@row("DFT")
def _dft(
    x: Node, length: Node | None = None, at: Node | None = None, axis: int | None = None,
    inverse: int = 0, onesided: int = 0,
) -> Node:  # fmt: skip
    if at is not None:
        axis = integer(at)
    elif axis is None:  # in opset 20 an input, -2 without it; before an attribute
        axis = x.ndim - 2
    axis %= x.ndim
    count = x.shape[axis] if length is None else integer(length)
    if inverse and onesided:
        return _real_inverse(x, axis, count if length is not None else 2 * (x.shape[axis] - 1))
    n = x.shape[axis]
    x = ops.pad(x, [(0, max(count - n, 0) if i == axis else 0) for i in range(x.ndim)])
    x = ops.moveaxis(x, axis, -2)[..., :count, :]  # ..., count, 1 or 2
    kept = count // 2 + 1 if onesided else count
    angle = 2 * np.pi / count * np.outer(np.arange(count), np.arange(kept))
    cos, sin = (constant(f(angle), x.dtype) for f in (np.cos, np.sin))
    sin = -sin if inverse else sin
    real = ops.matmul(x[..., 0], cos)
    imaginary = -ops.matmul(x[..., 0], sin)
    if x.shape[-1] == 2:
        real = real + ops.matmul(x[..., 1], sin)
        imaginary = imaginary + ops.matmul(x[..., 1], cos)
    y = ops.stack([real, imaginary], -1)
    return ops.moveaxis(y / count if inverse else y, -2, axis)


def _real_inverse(x: Node, axis: int, count: int) -> Node:
    """Return the real signal of `count` numbers that has such a first half of its spectrum."""
    kept = count // 2 + 1
    x = ops.moveaxis(x, axis, -2)[..., :kept, :]
    angle = 2 * np.pi / count * np.outer(np.arange(kept), np.arange(count))
    twice = np.full((kept, 1), 2.0)  # all but these stand for their conjugates, too
    twice[0], twice[-1] = 1, 1 if count % 2 == 0 else 2
    cos, sin = (constant(f(angle) * twice / count, x.dtype) for f in (np.cos, np.sin))
    y = ops.matmul(x[..., 0], cos) - ops.matmul(x[..., 1], sin)
    return ops.moveaxis(ops.expand_dims(y, -1), -2, axis)


@row("STFT")
def _stft(
    x: Node, step: Node, window: Node | None = None, length: Node | None = None, onesided: int = 1
) -> Node:
    size = integer(length) if length is not None else window.shape[0]  # type: ignore[union-attr]
    starts = np.arange(0, x.shape[1] - size + 1, integer(step))
    frames = ops.take(x, constant(starts[:, None] + np.arange(size)), 1)
    if window is not None:
        frames = frames * ops.reshape(window, (-1, 1))
    return _dft(frames, axis=2, onesided=onesided)

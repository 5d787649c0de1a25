"""Rows of products of matrices and of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import Node
from minigraph.interchange.windows import Windows
from minigraph.onnx.operators.pooling import windows
from minigraph.onnx.operators.table import MICROSOFT, row, rows

rows({"MatMul": ops.matmul})


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


@row("Conv")
def convolution(
    x: Node, w: Node, bias: Node | None = None, group: int = 1,
    kernel_shape: Sequence[int] | None = None, **window: Any,
) -> Node:  # fmt: skip
    """Return the convolution of images with one to three axes."""
    how = windows(x, w.shape[2:], **window)
    rank = len(how.size)
    if rank == 1:
        x, w = ops.expand_dims(x, 2), ops.expand_dims(w, 2)
        return ops.squeeze(_conv2d(x, w, bias, _flat(how), group), 2)
    if rank == 2:
        return _conv2d(x, w, bias, how, group)
    if rank != 3:
        raise GraphError(f"a convolution of images with {rank} axes")
    # What a window reads along the first axis becomes channels, and that axis one of examples.
    taps = how.along(slice(0, 1)).taps(ops.moveaxis(x, 2, -1))  # k n c h w d
    taps = ops.permute_dims(taps, (1, 5, 2, 0, 3, 4))
    n, d, c, k, height, wide = taps.shape
    images = ops.reshape(taps, (n * d, c * k, height, wide))
    weights = ops.reshape(w, (w.shape[0], -1, *w.shape[3:]))
    y = _conv2d(images, weights, bias, how.along(slice(1, 3)), group)
    return ops.moveaxis(ops.reshape(y, (n, d, *y.shape[1:])), 1, 2)


def _flat(how: Windows) -> Windows:
    """Return windows along one axis as those of images with one row."""
    return Windows([1, *how.size], [1, *how.stride], [(0, 0), *how.padding], [1, *how.dilation])


def _conv2d(x: Node, w: Node, bias: Node | None, how: Windows, group: int) -> Node:
    padding = tuple(a for a, _ in how.padding)
    if any(a != b or a < 0 for a, b in how.padding):
        x, padding = ops.pad(x, [(0, 0), (0, 0), *how.padding]), (0, 0)
    return ops.conv2d(x, w, bias, tuple(how.stride), padding, tuple(how.dilation), group)


@row("ConvTranspose")
def _conv_transpose(
    x: Node, w: Node, bias: Node | None = None, group: int = 1, strides: Any = None,
    pads: Any = None, dilations: Any = None, auto_pad: str = "NOTSET", output_padding: Any = None,
    output_shape: Any = None, kernel_shape: Any = None,
) -> Node:  # fmt: skip
    how = windows(x, w.shape[2:], strides, pads, dilations)
    rank, extra = len(how.size), [*(output_padding or [0] * len(how.size))]
    if rank > 2:
        raise GraphError(f"a transposed convolution of images with {rank} axes")
    if output_shape or auto_pad.startswith("SAME"):
        wanted = output_shape or [n * s for n, s in zip(x.shape[2:], how.stride, strict=True)]
        sizes = _transposed(x, how)
        totals = [n + e - m for n, e, m in zip(sizes, extra, wanted[-rank:], strict=True)]
        halves = [(t // 2, t - t // 2) for t in totals]
        same_upper = auto_pad == "SAME_UPPER"
        how = how._replace(padding=halves if same_upper else [(b, a) for a, b in halves])
    if rank == 1:
        x, w, how, extra = ops.expand_dims(x, 2), ops.expand_dims(w, 2), _flat(how), [0, *extra]
    borders, (stride, dilation) = how.padding, (tuple(how.stride), tuple(how.dilation))
    before = tuple(a for a, _ in borders)
    if all(a == b >= 0 and e < s for (a, b), e, s in zip(borders, extra, stride, strict=True)):
        y = ops.conv_transpose2d(x, w, None, stride, before, tuple(extra), group, dilation)
    else:  # borders are cut off, and where there is nothing it is 0
        y = ops.conv_transpose2d(x, w, None, stride, 0, 0, group, dilation)
        sizes = [e + n - a - b for e, n, (a, b) in zip(extra, y.shape[2:], borders, strict=True)]
        around = [
            (max(-a, 0), max(e - b, 0)) for e, (_, b), a in zip(extra, borders, before, strict=True)
        ]
        first = [max(a, 0) for a in before]
        y = ops.pad(y, [(0, 0), (0, 0), *around])
        y = y[(..., *(slice(a, a + n) for a, n in zip(first, sizes, strict=True)))]
    y = y if bias is None else y + ops.reshape(bias, (-1, 1, 1))
    return ops.squeeze(y, 2) if rank == 1 else y


def _transposed(x: Node, how: Windows) -> list[int]:
    """Return the sizes of the images of a transposed convolution without borders."""
    axes = zip(x.shape[2:], how.size, how.stride, how.dilation, strict=True)
    return [(n - 1) * s + d * (k - 1) + 1 for n, k, s, d in axes]

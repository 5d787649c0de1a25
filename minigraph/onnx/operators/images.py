"""Rows of convolutions and pools of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minigraph import interchange, ops
from minigraph.errors import GraphError
from minigraph.graph import Node
from minigraph.interchange import Windows
from minigraph.onnx.operators.table import row, rows


def windows(
    x: Node, kernel_shape: Sequence[int], strides: Any = None, pads: Any = None,
    dilations: Any = None, auto_pad: str = "NOTSET", ceil_mode: int = 0,
) -> Windows:  # fmt: skip
    """Return the windows that the attributes of a pool or a convolution describe."""
    rank = len(kernel_shape)
    stride, dilation = [*(strides or [1] * rank)], [*(dilations or [1] * rank)]
    if auto_pad.startswith("SAME"):
        borders = []
        for n, k, s, d in zip(x.shape[2:], kernel_shape, stride, dilation, strict=True):
            total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            less = total // 2
            borders.append((less, total - less) if "UPPER" in auto_pad else (total - less, less))
    else:
        flat = [*pads] if pads and auto_pad == "NOTSET" else [0] * 2 * rank
        borders = [*zip(flat[:rank], flat[rank:], strict=True)]
    if not len(stride) == len(dilation) == len(borders) == rank == x.ndim - 2:
        raise GraphError(f"a window of {[*kernel_shape]} does not fit {x.spec}, or its strides")
    return Windows([*kernel_shape], stride, borders, dilation, bool(ceil_mode))


@row("MaxPool", counting=True)
def _max_pool(x: Node, storage_order: int = 0, outputs: int = 1, **window: Any) -> Any:
    w = windows(x, **window)
    y = w.maximum(x)
    if outputs == 1:
        return y
    place, size = w.place_of_maximum(x), math.prod(x.shape[2:])
    if storage_order:  # counted by columns
        height, width = x.shape[-2:]
        inner = place % (height * width)
        place = place - inner + inner % width * height + inner // width
    images = (*x.shape[:2], *(1,) * len(w.size))
    return [y, place + ops.reshape(ops.arange(math.prod(images)) * size, images)]


def _lp(x: Node, p: int, axes: Any, keepdims: bool) -> Node:
    if p in (1, 2):
        return ops.norm(x, p, axes, keepdims)
    return ops.pow(ops.sum(ops.pow(ops.abs(x), p), axes, keepdims), 1 / p)


def _spatial(x: Node) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


rows(
    {
        "AveragePool": lambda x, count_include_pad=0, **window: windows(x, **window).mean(
            x, bool(count_include_pad)
        ),
        "LpPool": lambda x, p=2, **window: _lp(windows(x, **window).taps(x), p, 0, False),
        "GlobalAveragePool": lambda x: ops.mean(x, _spatial(x), True),
        "GlobalMaxPool": lambda x: ops.max(x, _spatial(x), True),
        "GlobalLpPool": lambda x, p=2: _lp(x, p, _spatial(x), True),
    }
)


@row("Conv")
def convolution(
    x: Node, w: Node, bias: Node | None = None, group: int = 1, kernel_shape: Any = None,
    **window: Any,
) -> Node:  # fmt: skip
    """Return the convolution of images with one to three axes."""
    return interchange.convolution(x, w, bias, windows(x, w.shape[2:], **window), group)


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
        x, w, how, extra = ops.expand_dims(x, 2), ops.expand_dims(w, 2), how.flat(), [0, *extra]
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

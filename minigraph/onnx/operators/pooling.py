"""Rows of operators that pool images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import FLOATS, Node
from minigraph.interchange.windows import Windows
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


def _plain(x: Node, w: Windows) -> tuple[Any, Any, Any, bool] | None:
    """Return what the ops of images take for windows, or None if they have no such windows."""
    even = all(a == b and 2 * a <= k for (a, b), k in zip(w.padding, w.size, strict=True))
    if len(w.size) != 2 or not even or {*w.dilation} != {1} or x.dtype not in FLOATS:
        return None
    return tuple(w.size), tuple(w.stride), tuple(a for a, _ in w.padding), w.ceil


@row("MaxPool", counting=True)
def _max_pool(x: Node, storage_order: int = 0, outputs: int = 1, **window: Any) -> Any:
    w = windows(x, **window)
    plain = _plain(x, w)
    y = ops.max_pool2d(x, *plain) if plain else w.maximum(x)
    if outputs == 1:
        return y
    place, size = w.place_of_maximum(x), math.prod(x.shape[2:])
    if storage_order:  # counted by columns
        height, width = x.shape[-2:]
        inner = place % (height * width)
        place = place - inner + inner % width * height + inner // width
    images = (*x.shape[:2], *(1,) * len(w.size))
    return [y, place + ops.reshape(ops.arange(math.prod(images)) * size, images)]


@row("AveragePool")
def _average_pool(x: Node, count_include_pad: int = 0, **window: Any) -> Node:
    w = windows(x, **window)
    if plain := _plain(x, w):
        return ops.avg_pool2d(x, *plain, bool(count_include_pad))
    return w.mean(x, bool(count_include_pad))


@row("LpPool")
def _lp_pool(x: Node, p: int = 2, **window: Any) -> Node:
    return _lp(windows(x, **window).taps(x), p, 0, False)


def _lp(x: Node, p: int, axes: Any, keepdims: bool) -> Node:
    if p in (1, 2):
        return ops.norm(x, p, axes, keepdims)
    return ops.pow(ops.sum(ops.pow(ops.abs(x), p), axes, keepdims), 1 / p)


def _spatial(x: Node) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


rows(
    {
        "GlobalAveragePool": lambda x: ops.mean(x, _spatial(x), True),
        "GlobalMaxPool": lambda x: ops.max(x, _spatial(x), True),
        "GlobalLpPool": lambda x, p=2: _lp(x, p, _spatial(x), True),
    }
)

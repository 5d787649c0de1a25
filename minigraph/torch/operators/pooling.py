"""Rows of operators that pool or resize images."""

from __future__ import annotations

from typing import Any

from minigraph import ops
from minigraph.graph import FLOATS, Node
from minigraph.interchange.windows import Windows
from minigraph.torch.operators.table import Row, pair, row, rows


@row("max_pool2d")
def _max_pool2d(
    x: Node, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Node:
    if pair(dilation) != (1, 1) or x.dtype not in FLOATS:
        return _max_pool(2)(x, window, stride, padding, dilation, ceil)[0]
    single = x.ndim == 3
    x = ops.expand_dims(x, 0) if single else x
    y = ops.max_pool2d(x, pair(window), pair(stride) if stride else None, pair(padding), ceil)
    return ops.squeeze(y, 0) if single else y


def _windows(
    rank: int, window: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Windows:
    size, step, border, spread = (
        [v] * rank if isinstance(v, int) else [*v] * (rank // len(v))
        for v in (window, stride or window, padding, dilation)
    )
    return Windows(size, step, [(n, n) for n in border], spread, ceil)


def _max_pool(rank: int) -> Row:
    """Return the row of max pooling that gives the maxima, and where in the image they are."""

    def pool(
        x: Node, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil: bool = False,
    ) -> tuple[Node, Node]:  # fmt: skip
        windows = _windows(rank, window, stride, padding, dilation, ceil)
        return windows.maximum(x), windows.place_of_maximum(x)

    return pool


rows({f"max_pool{n}d_with_indices": _max_pool(n) for n in (2, 3)})
rows({f"max_pool{n}d": lambda *args, n=n: _max_pool(n)(*args)[0] for n in (1, 3)})


@row("avg_pool2d")
def _avg_pool2d(
    x: Node, window: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    count_include_pad: bool = True, divisor: Any = None,
) -> Node:  # fmt: skip
    if divisor is not None:
        return _avg_pool(2)(x, window, stride, padding, ceil, count_include_pad, divisor)
    single = x.ndim == 3
    x = ops.expand_dims(x, 0) if single else x
    strides = pair(stride) if stride else None
    y = ops.avg_pool2d(x, pair(window), strides, pair(padding), ceil, count_include_pad)
    return ops.squeeze(y, 0) if single else y


def _avg_pool(rank: int) -> Row:
    def pool(
        x: Node, window: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
        count_include_pad: bool = True, divisor: Any = None,
    ) -> Node:  # fmt: skip
        windows = _windows(rank, window, stride, padding, 1, ceil)
        if divisor is not None:
            return windows.reduced(x, ops.sum, 0) / divisor
        return windows.mean(x, count_include_pad)

    return pool


rows({f"avg_pool{n}d": _avg_pool(n) for n in (1, 3)})


@row("adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def _adaptive_avg_pool2d(x: Node, size: Any) -> Node:
    return ops.adaptive_avg_pool2d(x, pair(size))


@row("adaptive_avg_pool1d")
def _adaptive_avg_pool1d(x: Node, size: Any) -> Node:
    return ops.squeeze(ops.adaptive_avg_pool2d(ops.expand_dims(x, 2), (1, pair(size)[-1])), 2)


@row("upsample_nearest2d.vec", "upsample_nearest2d")
def _upsample_nearest(x: Node, size: Any = None, factors: Any = None, *unused: Any) -> Node:
    size, factor = (tuple(size), None) if size else (None, tuple(factors))
    return ops.interpolate(x, size, factor, "nearest")


@row("upsample_bilinear2d.vec", "upsample_bilinear2d")
def _upsample_bilinear(
    x: Node, size: Any = None, align: bool = False, factors: Any = None, *unused: Any
) -> Node:
    size, factor = (tuple(size), None) if size else (None, tuple(factors))
    return ops.interpolate(x, size, factor, "bilinear", align)


@row("pixel_shuffle")
def _pixel_shuffle(x: Node, factor: int) -> Node:
    n, c, h, w = x.shape
    cut = ops.reshape(x, (n, c // factor**2, factor, factor, h, w))
    moved = ops.permute_dims(cut, (0, 1, 4, 2, 5, 3))
    return ops.reshape(moved, (n, c // factor**2, h * factor, w * factor))

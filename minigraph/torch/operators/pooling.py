"""Rows of operators that pool or resize images."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from minigraph import ops
from minigraph.errors import ShapeError
from minigraph.graph import FLOATS, Node
from minigraph.interchange.windows import Windows
from minigraph.torch.operators.table import pair, row, rows


def _windows(
    rank: int, window: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Windows:
    size, step, border, spread = (
        [v] * rank if isinstance(v, int) else [*v] * (rank // len(v))
        for v in (window, stride or window, padding, dilation)
    )
    return Windows(size, step, [(n, n) for n in border], spread, ceil)


@row("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    x: Node, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> tuple[Node, Node | None]:
    """Return the maxima, and where in the image they are, None where that has no expression."""
    rank = len(window)
    windows = _windows(rank, window, stride, padding, dilation, ceil)
    places = None
    with suppress(ShapeError):  # of large windows, or of sizes that only the call gives
        places = windows.place_of_maximum(x)
    if rank != 2 or pair(dilation) != (1, 1) or x.dtype not in FLOATS:
        return windows.maximum(x), places
    single = x.ndim == 3
    x = ops.expand_dims(x, 0) if single else x
    y = ops.max_pool2d(x, pair(window), pair(stride) if stride else None, pair(padding), ceil)
    return ops.squeeze(y, 0) if single else y, places


@row("avg_pool2d", "avg_pool3d")
def avg_pool(
    x: Node, window: Any, stride: Any, padding: Any, ceil: bool, count_include_pad: bool,
    divisor: Any,
) -> Node:  # fmt: skip
    """Return the means of windows, or their sums over a divisor."""
    windows = _windows(len(window), window, stride, padding, 1, ceil)
    if divisor is not None:
        return windows.reduced(x, ops.sum, 0) / divisor
    if len(window) != 2 or x.dtype not in FLOATS:
        return windows.mean(x, count_include_pad)
    single = x.ndim == 3
    x = ops.expand_dims(x, 0) if single else x
    strides = pair(stride) if stride else None
    y = ops.avg_pool2d(x, pair(window), strides, pair(padding), ceil, count_include_pad)
    return ops.squeeze(y, 0) if single else y


rows(
    {
        "adaptive_avg_pool2d _adaptive_avg_pool2d": (
            lambda x, size: ops.adaptive_avg_pool2d(x, pair(size))
        )
    }
)


@row("upsample_nearest2d.vec", "upsample_nearest2d")
def upsample_nearest(x: Node, size: Any, factors: Any, *unused: Any) -> Node:
    """Return images of another size, of their nearest pixels."""
    size, factor = (tuple(size), None) if size else (None, tuple(factors))
    return ops.interpolate(x, size, factor, "nearest")


@row("upsample_bilinear2d.vec", "upsample_bilinear2d")
def upsample_bilinear(x: Node, size: Any, align: bool, factors: Any, *unused: Any) -> Node:
    """Return images of another size, of mixed pixels."""
    size, factor = (tuple(size), None) if size else (None, tuple(factors))
    return ops.interpolate(x, size, factor, "bilinear", align)

"""Rows of operators that pool or resize images."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from minigraph import ops
from minigraph.graph import FLOATS, Node
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


def _taps(
    x: Node, rank: int, window: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, fill: Any
) -> Node:
    """Return what each window over the last `rank` axes reads, along a new first axis."""
    sizes = zip(
        *(_each(v, rank) for v in (window, stride or window, padding, dilation)), strict=True
    )
    starts, widths = [], [(0, 0)] * (x.ndim - rank)
    for n, (k, s, p, d) in zip(x.shape[x.ndim - rank :], sizes, strict=True):
        span = d * (k - 1) + 1
        room = n + 2 * p - span
        count = (-(-room // s) if ceil else room // s) + 1
        if ceil and (count - 1) * s >= n + p:  # the last window would lie in the padding
            count -= 1
        reach = (count - 1) * s + span
        widths.append((p, max(reach - n - p, 0)))
        starts.append([slice(i * d, i * d + (count - 1) * s + 1, s) for i in range(k)])
    x = ops.pad(x, widths, fill)
    return ops.stack([x[(..., *places)] for places in itertools.product(*starts)])


def _each(value: Any, rank: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * (rank // len(values))


def _max_pool(rank: int) -> Row:
    """Return the row of max pooling that gives the maxima, and where in the image they are."""

    def pool(
        x: Node, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil: bool = False,
    ) -> tuple[Node, Node]:  # fmt: skip
        shape = x.shape[x.ndim - rank :]
        places = ops.reshape(ops.arange(math.prod(shape), dtype="int64"), shape)
        how = (rank, window, stride, padding, dilation, ceil)
        lowest = -math.inf if x.dtype in FLOATS else int(np.iinfo(x.dtype).min)
        values = _taps(x, *how, lowest)
        most = ops.argmax(values, 0, True)
        read = ops.broadcast_to(
            ops.reshape(
                t := _taps(places, *how, 0), (t.shape[0], *(1,) * (x.ndim - rank), *t.shape[1:])
            ),
            values.shape,
        )
        return tuple(ops.take_along_axis(v, most, 0)[0] for v in (values, read))  # type: ignore[return-value]

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
        how = (rank, window, stride, padding, 1, ceil)
        total = ops.sum(_taps(x, *how, 0), 0)
        if divisor is not None:
            return total / divisor
        shape = x.shape[x.ndim - rank :]
        if count_include_pad:  # but not what `ceil` adds
            borders = _each(padding, rank)
            inside = ops.ones(tuple(n + 2 * p for n, p in zip(shape, borders, strict=True)))
            how = (rank, window, stride, 0, 1, ceil)
            taps = _taps(inside, *how, 0)
            taps = taps[(slice(None), *(slice(n) for n in total.shape[total.ndim - rank :]))]
        else:
            taps = _taps(ops.ones(shape), *how, 0)
        return total / ops.astype(ops.sum(taps, 0), x.dtype)

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

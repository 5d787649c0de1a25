"""Rows of convolutions, of pools and of resizing."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from minigraph import ops
from minigraph.errors import ShapeError
from minigraph.graph import Node
from minigraph.ops.nd_windows import Windows
from minigraph.ops.sampling import grid_sample
from minigraph.torch.operators.table import row


def _per_axis(value: Any, rank: int) -> list[Any]:
    """Return one number per axis, from torch's number, list of one, or list of all."""
    return [value] * rank if isinstance(value, int) else [*value] * (rank // len(value))


def _windows(
    rank: int, window: Any, stride: Any, padding: Any, dilation: Any = 1, ceil: bool = False
) -> Windows:
    settings = (window, stride or window, padding, dilation)
    size, step, borders, spread = (_per_axis(value, rank) for value in settings)
    return Windows(size, step, [(n, n) for n in borders], spread, ceil)


@row("convolution", "_convolution")
def convolution(
    x: Node, w: Node, bias: Node | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, *unused: Any,
) -> Node:  # fmt: skip
    """Return a convolution or a transposed convolution of sequences, images or volumes."""
    rank = x.ndim - 2
    windows = _windows(rank, w.shape[2:], stride, padding, dilation)
    if not transposed:
        return windows.convolution(x, w, bias, groups)
    extras = _per_axis(output_padding, rank)
    return windows.transposed_convolution(x, w, bias, extras, groups)


@row("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    x: Node, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> tuple[Node, Node | None]:
    """Return the maxima, and their positions in the image, or None if these have no expression."""
    windows = _windows(len(window), window, stride, padding, dilation, ceil)
    positions = None
    with suppress(ShapeError):  # of large windows, or of sizes that only the call gives
        positions = windows.place_of_maximum(x)
    return windows.maximum(x), positions


@row("avg_pool2d", "avg_pool3d")
def avg_pool(
    x: Node, window: Any, stride: Any, padding: Any, ceil: bool, count_include_pad: bool,
    divisor: Any,
) -> Node:  # fmt: skip
    """Return the means of windows, or their sums over a divisor."""
    windows = _windows(len(window), window, stride, padding, 1, ceil)
    if divisor is not None:
        return windows.reduced(x, ops.sum, 0) / divisor
    return windows.mean(x, count_include_pad)


@row("adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def _adaptive_avg_pool(x: Node, size: Any) -> Node:
    return ops.adaptive_avg_pool2d(x, tuple(_per_axis(size, 2)))


@row("_adaptive_avg_pool3d")
def adaptive_avg_pool_3d(x: Node, size: Any) -> Node:
    """Return means of the last three axes: first of the last two, then of the one before."""
    *lead, depth, height, width = x.shape
    first, *others = _per_axis(size, 3)
    y = ops.adaptive_avg_pool2d(ops.reshape(x, (1, -1, height, width)), tuple(others))
    y = ops.reshape(y, (1, -1, depth, math.prod(others)))
    y = ops.adaptive_avg_pool2d(y, (first, math.prod(others)))
    return ops.reshape(y, (*lead, first, *others))


@row("adaptive_max_pool2d")
def _adaptive_max_pool(x: Node, size: Any) -> tuple[Node, None]:
    """Return the maxima; their positions in the image have no expression."""
    images = x if x.ndim == 4 else ops.expand_dims(x, 0)
    y = ops.adaptive_max_pool2d(images, tuple(_per_axis(size, 2)))
    return (y if x.ndim == 4 else ops.squeeze(y, 0)), None


@row("upsample_nearest2d.vec", "upsample_nearest2d")
def upsample_nearest(x: Node, size: Any, factors: Any, *unused: Any) -> Node:
    """Return images of another size, whose pixels are the nearest ones."""
    size, factor = (tuple(size), None) if size else (None, tuple(factors))
    return ops.interpolate(x, size, factor, "nearest")


@row("upsample_bilinear2d.vec", "upsample_bilinear2d")
def upsample_bilinear(x: Node, size: Any, align: bool, factors: Any, *unused: Any) -> Node:
    """Return images of another size, whose pixels are linearly interpolated."""
    size, factor = (tuple(size), None) if size else (None, tuple(factors))
    return ops.interpolate(x, size, factor, "bilinear", align)


@row("grid_sampler_3d")
def grid_sampler_3d(x: Node, grid: Node, mode: int, padding: int, align: bool) -> Node:
    """Return the values of volumes x (n, c, depth, height, width) at positions `grid`."""
    borders = "zeros", "border", "reflection"
    return grid_sample(x, grid, "nearest" if mode else "linear", borders[padding], align)

"""Rows of convolutions, of pools and of resizing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from minigraph import ops
from minigraph.autodiff import vjp
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import Node
from minigraph.ops.nd_windows import Windows
from minigraph.torch.operators.table import row


def _each(value: Any, rank: int) -> list[Any]:
    """Return a number for each axis, given torch's number, list of one, or list of all."""
    return [value] * rank if isinstance(value, int) else [*value] * (rank // len(value))


def _windows(
    rank: int, window: Any, stride: Any, padding: Any, dilation: Any = 1, ceil: bool = False
) -> Windows:
    given = (window, stride or window, padding, dilation)
    size, step, border, spread = (_each(value, rank) for value in given)
    return Windows(size, step, [(n, n) for n in border], spread, ceil)


@row("convolution", "_convolution")
def convolution(
    x: Node, w: Node, bias: Node | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, *unused: Any,
) -> Node:  # fmt: skip
    """Return a convolution, a transposed one of sequences as that of images of one row."""
    rank = x.ndim - 2
    how = _windows(rank, w.shape[2:], stride, padding, dilation)
    if not transposed:
        return how.convolution(x, w, bias, groups)
    extras = _each(output_padding, rank)
    if rank != 3:
        return how.transposed_convolution(x, w, bias, extras, groups)
    y = _transposed_convolution_3d(how, x, w, extras, groups)
    return y if bias is None else y + ops.reshape(bias, (-1, 1, 1, 1))


def _transposed_convolution_3d(
    how: Windows, x: Node, w: Node, extras: Sequence[int], groups: int
) -> Node:
    """Return the gradient for the input of the convolution without padding, which is cut off."""
    axes = zip(x.shape[2:], how.size, how.stride, how.dilation, strict=True)
    sizes = [(n - 1) * s + d * (k - 1) + 1 for n, k, s, d in axes]
    given = ops.zeros((x.shape[0], w.shape[1] * groups, *sizes), x.dtype)
    whole = how._replace(padding=[(0, 0)] * 3).convolution(given, w, None, groups)
    (y,) = vjp([whole], [x], [given])
    ends = [(a, extra - b) for (a, b), extra in zip(how.padding, extras, strict=True)]
    y = ops.pad(y, [(0, 0), (0, 0), *((0, max(more, 0)) for _, more in ends)])
    cuts = (slice(a, n + more) for n, (a, more) in zip(sizes, ends, strict=True))
    return y[(..., *cuts)]


@row("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    x: Node, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> tuple[Node, Node | None]:
    """Return the maxima, and their positions in the image, or None if those have no expression."""
    windows = _windows(len(window), window, stride, padding, dilation, ceil)
    places = None
    with suppress(ShapeError):  # of large windows, or of sizes that only the call gives
        places = windows.place_of_maximum(x)
    return windows.maximum(x), places


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
    return ops.adaptive_avg_pool2d(x, tuple(_each(size, 2)))


@row("_adaptive_avg_pool3d")
def adaptive_avg_pool_3d(x: Node, size: Any) -> Node:
    """Return the means along the last two axes, and then of those along the one before."""
    *lead, depth, height, width = x.shape
    first, *others = _each(size, 3)
    y = ops.adaptive_avg_pool2d(ops.reshape(x, (1, -1, height, width)), tuple(others))
    y = ops.reshape(y, (1, -1, depth, math.prod(others)))
    y = ops.adaptive_avg_pool2d(y, (first, math.prod(others)))
    return ops.reshape(y, (*lead, first, *others))


@row("adaptive_max_pool2d")
def _adaptive_max_pool(x: Node, size: Any) -> tuple[Node, None]:
    """Return the maxima; their positions in the image have no expression."""
    images = x if x.ndim == 4 else ops.expand_dims(x, 0)
    y = ops.adaptive_max_pool2d(images, tuple(_each(size, 2)))
    return (y if x.ndim == 4 else ops.squeeze(y, 0)), None


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


@row("grid_sampler_3d")
def grid_sampler_3d(x: Node, grid: Node, mode: int, border: int, align: bool) -> Node:
    """Return the values of volumes x (n, c, depth, height, width) at the places `grid` (n, ..., 3).

    The last axis of `grid` is the place along the width, the height and the depth, from -1 to 1.

    mode    0: the eight values around a place, weighted by distance, 1: the nearest
    border  what is outside, 0: zeros, 1: the outermost values
    """
    if border == 2:
        raise GraphError("volumes are not reflected at their borders here")
    n, channels, *sizes = x.shape
    around = []  # along each axis: the two integers beside a place, and their weights
    for axis, size in enumerate(sizes):
        at = (ops.reshape(grid[..., 2 - axis], (n, 1, -1)) + 1) / 2
        at = at * (size - 1) if align else at * size - 0.5
        if border == 1:  # torch's gradient of a place on the border is 0
            edge = ops.stop_gradient(ops.clip(at, 0, size - 1))
            at = ops.where((at > 0) & (at < size - 1), at, edge)
        first = ops.stop_gradient(ops.floor(at) if mode == 0 else ops.round(at))
        pairs = [(first, 1 - (at - first)), (first + 1, at - first)]
        around.append(pairs if mode == 0 else [(first, ops.ones_like(first))])
    flat = ops.reshape(x, (n, channels, -1))
    total: Any = 0
    for corner in itertools.product(*around):
        place: Any = 0
        weight: Any = 1
        for (at, share), size in zip(corner, sizes, strict=True):
            place = place * size + ops.astype(ops.clip(at, 0, size - 1), "int64")
            weight = weight * ops.where((at >= 0) & (at < size), share, 0)
        place = ops.broadcast_to(place, (n, channels, place.shape[-1]))
        total = total + ops.take_along_axis(flat, place, -1) * weight
    return ops.reshape(total, (n, channels, *grid.shape[1:-1]))

"""Values of images at positions between their pixels, as ONNX and PyTorch define them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from minigraph import ops
from minigraph.graph import Node, constant

REACH = {"nearest": 0, "linear": 1, "cubic": 2}  # radius of a kernel in pixels
CUBIC = -0.75  # the coefficient of operators without such an attribute


def grid_sample(x: Node, grid: Node, mode: str, padding: str, corners: bool) -> Node:
    """Return the values of images x (n, c, ...) at positions `grid` (n, ..., axes).

    The last axis of `grid` has the positions along the axes, the last one first, from -1 to 1.

    mode     of interpolation, a key of REACH
    padding  pixels outside: "zeros", "border" (the outermost pixels) or "reflection"
    corners  whether -1 and 1 are the centres of the outermost pixels, not their edges
    """
    (n, channels, *sizes), new = x.shape, grid.shape[1:-1]
    positions = zip(sizes, reversed(ops.unstack(grid, -1)), strict=True)
    flat, y = ops.reshape(x, (n, channels, math.prod(sizes))), constant(0, x.dtype)
    for taps in itertools.product(*(_taps(*each, mode, padding, corners) for each in positions)):
        index, weight = constant(0), constant(1, grid.dtype)
        for size, (pixel, factor) in zip(sizes, taps, strict=True):
            index, weight = index * size + pixel, weight * factor
        index, weight = (ops.reshape(each, (n, 1, math.prod(new))) for each in (index, weight))
        index = ops.broadcast_to(index, (n, channels, math.prod(new)))
        y = y + ops.take_along_axis(flat, index, 2) * weight
    return ops.reshape(ops.astype(y, x.dtype), (n, channels, *new))


def _taps(
    size: int, position: Node, mode: str, padding: str, corners: bool
) -> Iterator[tuple[Node, Node]]:
    """Yield the indices of pixels for positions from -1 to 1 along an axis, and their weights."""
    position = ((position + 1) * (size - corners) - (not corners)) / 2
    if padding == "border" and mode != "cubic":  # torch's gradient of such a position is 0
        edge = ops.stop_gradient(ops.clip(position, 0, size - 1))
        position = ops.where((position > 0) & (position < size - 1), position, edge)
    reach = REACH[mode]
    first = ops.floor(position) if reach else ops.round(position)
    share = position - first
    weights = [1 - share, share] if mode == "linear" else [ops.ones_like(share)]
    if mode == "cubic":
        weights = [cubic_kernel(ops, share - i, CUBIC) for i in range(1 - reach, reach + 1)]
    for offset, weight in enumerate(weights, min(1 - reach, 0)):
        pixel = first + offset
        if padding == "zeros":
            weight = ops.where((pixel >= 0) & (pixel < size), weight, 0)
        elif padding == "reflection":
            period = 2 * (size - corners)
            pixel = ops.remainder(pixel, max(period, 1))
            pixel = ops.minimum(pixel, period - (not corners) - pixel)
        yield ops.astype(ops.clip(pixel, 0, size - 1), "int64"), weight


def cubic_kernel(xp: Any, t: Any, a: float) -> Any:
    """Return the weights of pixels at a distance t (Keys, 1981); `xp` is NumPy or `ops`."""
    t = xp.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = a * (((t - 5) * t + 8) * t - 4)
    return xp.where(t <= 1, near, xp.where(t < 2, far, 0))

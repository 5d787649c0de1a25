"""Sliding windows over images: the arithmetic that convolution and pooling share."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from minigraph.errors import ShapeError
from minigraph.graph import Array

Pair = tuple[int, int]
Pairs = tuple[Pair, Pair]


def as_pair(name: str, value: Any, minimum: int) -> Pair:
    """Return an int or a pair of ints as a pair; ShapeError if one is below `minimum`."""
    items = value if isinstance(value, list | tuple) else (value, value)
    try:
        pair = tuple(operator.index(n) for n in items)
    except TypeError:
        pair = ()
    if len(pair) != 2 or min(pair) < minimum:
        raise ShapeError(f"{name} is an int or a pair of ints >= {minimum}, not {value!r}")
    return pair[0], pair[1]


def steps(size: int, window: int, stride: int, padding: Pair, dilation: int = 1) -> int:
    """Return how many windows fit along an axis; ShapeError if none does."""
    reach = dilation * (window - 1) + 1
    if size + sum(padding) < reach:
        raise ShapeError(f"a window of {reach} does not fit {size} pixels with padding {padding}")
    return (size + sum(padding) - reach) // stride + 1


def windows(
    x: Array, window: Pair, stride: Pair, padding: Pairs, dilation: Pair = (1, 1), fill: float = 0
) -> Array:
    """Return a view of padded x [n, c, h, w] as [n, c, i, j, r, s]: the patch that (i, j) sees."""
    x = np.pad(x, ((0, 0), (0, 0), *padding), constant_values=fill)
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilation, window, strict=True))
    view = np.lib.stride_tricks.sliding_window_view(x, reach, (2, 3))
    return view[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def scatter(
    patches: Array, shape: tuple[int, ...], stride: Pair, padding: Pairs, dilation: Pair = (1, 1)
) -> Array:
    """Undo `windows`: add patches [n, c, i, j, r, s] up to an image of `shape`."""
    n, c, height, width = shape
    (top, bottom), (left, right) = padding
    i, j, r, s = patches.shape[2:]
    out = np.zeros((n, c, top + height + bottom, left + width + right), patches.dtype)
    for y in range(r):
        for x in range(s):
            rows = slice(y * dilation[0], y * dilation[0] + (i - 1) * stride[0] + 1, stride[0])
            columns = slice(x * dilation[1], x * dilation[1] + (j - 1) * stride[1] + 1, stride[1])
            out[:, :, rows, columns] += patches[..., y, x]
    return out[:, :, top : top + height, left : left + width]

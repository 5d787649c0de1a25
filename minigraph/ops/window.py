"""Sliding windows over images: the arithmetic that convolution and pooling share."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from minigraph.errors import ShapeError
from minigraph.graph import Array, Shape

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


def windows(x: Array, window: Pair, stride: Pair, padding: Pairs, fill: float = 0) -> Array:
    """Return a view of padded x [n, c, h, w] as [n, c, i, j, r, s]: the patch that (i, j) sees."""
    x = np.pad(x, ((0, 0), (0, 0), *padding), constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(x, window, (2, 3))
    return view[:, :, :: stride[0], :: stride[1]]


def scatter(patches: Array, shape: Shape, stride: Pair, padding: Pairs) -> Array:
    """Undo `windows`: add patches [n, c, i, j, r, s] up to an image of `shape`."""
    i, j, r, s = patches.shape[2:]
    out = np.pad(np.zeros(shape, patches.dtype), ((0, 0), (0, 0), *padding))
    for y, x, pixels in taps(out, (r, s), (i, j), stride):
        pixels += patches[..., y, x]
    return inside(out, shape, padding)


def taps(
    x: Array, window: Pair, steps: Pair, stride: Pair, dilation: Pair = (1, 1)
) -> Iterator[tuple[int, int, Array]]:
    """Yield each place (r, s) in a window, and a view of padded x: the pixels seen from there.

    steps  how many windows there are along the two axes: the views are [n, c, *steps]
    """
    for place in itertools.product(*map(range, window)):
        rows, columns = (
            slice(at * d, at * d + (n - 1) * step + 1, step)
            for at, n, step, d in zip(place, steps, stride, dilation, strict=True)
        )
        yield *place, x[:, :, rows, columns]


def inside(padded: Array, shape: Shape, padding: Pairs) -> Array:
    """Return the view of a padded image, whose own shape is `shape`, without the padding."""
    (top, _), (left, _) = padding
    return padded[:, :, top : top + shape[2], left : left + shape[3]]

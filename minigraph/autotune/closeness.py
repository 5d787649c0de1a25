"""How close a result is to another, and how close it has to be."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from minigraph.graph import Array

# How far a result may be from the reference, relative to the root mean square of the reference.
# The inputs are drawn from N(0, 1), so that a sum of n products has a root mean square of sqrt(n):
# its rounding error stays below 1e-3 of that in float32 up to a million products, and a single
# product that is missing does not.  The other precisions follow from their own rounding.
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "tf32": 1e-2, "float16": 2e-2, "bfloat16": 0.1}


def widened(x: Array) -> Array:
    """Return an array as it is compared: in float32 or float64."""
    return x.astype(np.promote_types(x.dtype, np.float32), copy=False)


def _chunks(size: int, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield pieces of so many elements of contiguous arrays, widened."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, size):
        yield tuple(widened(x[start : start + size]) for x in flat)


def root_mean_square(array: Array, chunk: int) -> float:
    """Return the root of the mean of an array's squares."""
    total = sum(float(np.dot(x, x)) for (x,) in _chunks(chunk, array))
    return math.sqrt(total / max(array.size, 1))


def largest_difference(got: Array, wanted: Array, chunk: int) -> float:
    """Return the largest absolute difference of two arrays; NaN if there is one."""
    if not got.size:
        return 0.0
    return float(np.max([float(np.abs(x - y).max()) for x, y in _chunks(chunk, got, wanted)]))

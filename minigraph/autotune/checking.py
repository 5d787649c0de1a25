"""Whether a result is right: how close to another it has to be, and sums that it has to have.

Sums of a result's elements, each times a number, take less work than the result itself.  A
convolution is linear in its images, and in its weights.  So of sums of images, and of sums of
weights, come the same sums of its results.  Products of matrices have been checked in this way
since R. Freivalds, "Probabilistic machines can use less running time" (1977).

No number is less than 1 in size: where one element is off, its sum is off by that at least.  All
numbers differ, so elements in each other's place show.  Several errors could only cancel each
other by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from minigraph.graph import Array

# How far a result may be from the reference, relative to the root mean square of the reference.
# The inputs are drawn from N(0, 1), so that a sum of n products has a root mean square of sqrt(n):
# its rounding error stays below 1e-3 of that in float32 up to a million products, and a single
# product that is missing does not.  The other precisions follow from their own rounding.
TOLERANCE = {
    "float64": 1e-9,
    "float32": 1e-3,
    "bf16x3": 1e-3,
    "tf32": 1e-2,
    "float16": 2e-2,
    "bfloat16": 0.1,
}
MOST = 64  # elements of an axis in a sum
# Elements in a sum, by dtype: what they were rounded by adds up to the root of their number.
TERMS = {"float64": 1024, "float32": 1024, "float16": 16, "bfloat16": 4}


def widened(x: Array) -> Array:
    """Return an array as it is compared: in float32 or float64."""
    return x.astype(np.promote_types(x.dtype, np.float32), copy=False)


def _chunks(size: int, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield pieces of so many elements of contiguous arrays, widened."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, size):
        yield tuple(widened(x[start : start + size]) for x in flat)


def root_mean_square(array: Array, chunk: int) -> float:
    total = sum(float(np.dot(x, x)) for (x,) in _chunks(chunk, array))
    return math.sqrt(total / max(array.size, 1))


def largest_difference(got: Array, wanted: Array, chunk: int) -> float:
    """Return the largest absolute difference of two arrays; NaN if there is one."""
    if not got.size:
        return 0.0
    return float(np.max([float(np.abs(x - y).max()) for x, y in _chunks(chunk, got, wanted)]))


@dataclass(frozen=True)
class SumAxis:
    """An axis of a result that may be summed over.

    length  of the axis, or of each of its equal parts, which are summed alike: groups of channels
    result  which axis of the result it is
    inputs  by the positions of the inputs that have it: which axis of theirs
    added   the positions of inputs that do not have it, and are added to all elements along it
    """

    length: int
    result: int
    inputs: Mapping[int, int]
    added: Sequence[int] = ()


@dataclass(frozen=True)
class Sums:
    """The axes of a result over which sums can be computed from sums of the inputs.

    meaning  (shape of the result, inputs) to the result, in NumPy, for axes of any length
    """

    axes: Sequence[SumAxis]
    meaning: Callable[..., Array] = field(compare=False)

    def both(
        self, put: Callable[[Array], Array], y: Array, xs: Sequence[Array]
    ) -> tuple[Array, Array]:
        """Return sums of a result, and what they have to be by the inputs.

        put  takes an array of NumPy to where the others are
        """
        left, xs = TERMS[y.dtype.name], [*xs]
        for axis in self.axes:
            most = min(MOST, left)
            terms = next(n for n in range(most, 0, -1) if axis.length % n == 0)
            if axis.added and terms < axis.length:  # their part differs from sum to sum
                continue
            left //= terms
            numbers = put(_numbers(axis).reshape(-1, terms))
            y = summed(y, axis.result, numbers)
            for i, own in axis.inputs.items():
                xs[i] = summed(xs[i], own, numbers)
            for i in axis.added:
                xs[i] = xs[i] * numbers.sum()
        return y, self.meaning(y.shape, *map(widened, xs))


def _numbers(axis: SumAxis) -> Array:
    """Return numbers from 1 to 2 of either sign, others for each axis: axes may be exchanged."""
    random = np.random.default_rng((axis.length, axis.result))
    signs = random.choice(np.array([-1, 1], np.float32), axis.length)
    return signs * (1 + random.random(axis.length, np.float32))


def summed(x: Array, axis: int, numbers: Array) -> Array:
    """Return sums over runs of an axis: as many as rows of numbers, again and again."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    runs = x.reshape(math.prod(before), -1, *numbers.shape, math.prod(after))
    sums: Array = np.einsum("bgrti,rt->bgri", widened(runs), numbers)
    return sums.reshape(*before, -1, *after)

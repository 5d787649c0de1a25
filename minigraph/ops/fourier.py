"""Discrete Fourier transforms, as products with matrices of cosines and sines.

A transform of n numbers takes n**2 multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minigraph.graph import Node, constant
from minigraph.ops.joining import moveaxis
from minigraph.ops.slicing import getitem


def fourier_transform(
    parts: Sequence[Node],
    axis: int,
    size: int,
    *,
    inverse: bool = False,
    onesided: bool = False,
    scale: float = 1.0,
) -> list[Node]:
    """Return the real and the imaginary part of a discrete Fourier transform along an axis.

    parts     the real part of the numbers and, unless they are real, the imaginary part; zeros
              are added to fewer than `size` numbers along the axis, and more are left out
    size      numbers of the signal
    inverse   whether exponents are positive; the sum is not divided by `size`
    onesided  whether to compute the first size // 2 + 1 numbers alone; of an inverse transform,
              whether `parts` are these numbers for a real signal, whose real part is returned alone
    scale     factor of all results
    """
    halved = inverse and onesided
    count = min(parts[0].shape[axis], size // 2 + 1 if halved else size)
    rows = np.arange(count)[:, None]
    columns = np.arange(size // 2 + 1 if onesided > inverse else size)
    angle = (2 if inverse else -2) * np.pi / size * (rows * columns % size)
    # Numbers that were left out are conjugates of those whose place is neither 0 nor size / 2.
    weight = np.where(halved & (rows > 0) & (2 * rows < size), 2, 1) * scale
    cos, sin = (constant(f(angle) * weight, parts[0].dtype) for f in (np.cos, np.sin))
    index = (*(slice(None),) * (axis % parts[0].ndim), slice(0, count))
    real, *more = (moveaxis(getitem(part, index), axis, -1) for part in parts)
    re, im = real @ cos, real @ sin
    for imaginary in more:
        re, im = re - imaginary @ sin, im + imaginary @ cos
    return [moveaxis(part, -1, axis) for part in ([re] if halved else [re, im])]

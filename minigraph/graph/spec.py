"""What is known of an array before it exists, and making one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minigraph.graph.dtypes import FLOATS, Array, DType

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Spec:
    """The shape and dtype of a value."""

    shape: Shape
    dtype: DType = FLOATS[2]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def strides(self) -> Shape:
        """The strides, in bytes, of a C-contiguous array."""
        strides, step = [], self.dtype.itemsize
        for n in reversed(self.shape):
            strides.append(step)
            step *= max(n, 1)
        return tuple(reversed(strides))

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"


def aligned_empty(spec: Spec) -> Array:
    """Return an uninitialised array that begins at a multiple of 64 bytes, for SIMD code."""
    raw = np.empty(spec.nbytes + 63, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + spec.nbytes].view(spec.dtype).reshape(spec.shape)

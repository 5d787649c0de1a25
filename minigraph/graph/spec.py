"""The shape and dtype of an array, and its allocation."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from minigraph.arguments import Kind, sizes
from minigraph.errors import ShapeError
from minigraph.graph.dtypes import FLOATS, Array, DType
from minigraph.symbolic import SymbolicSize

Shape = tuple[int, ...]

# NumPy broadcasts no more.  Where a kernel of ours or of oneDNN takes fewer, NumPy stands in.
MAX_AXES = 32
# What byte offsets of 64 bits reach, with room for the space between arrays.
MAX_BYTES = 1 << 62


@dataclass(frozen=True)
class Spec:
    """The shape and dtype of a value; ShapeError for what no array can have.

    That is a size below 0, and more axes or bytes than there may be.

    size  how many elements it has
    """

    shape: Shape
    dtype: DType = FLOATS[2]
    size: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        count = math.prod(self.shape)
        object.__setattr__(self, "size", count)
        if isinstance(count, SymbolicSize):
            _check_axes(len(self.shape))
        elif (
            not 0 < count <= MAX_BYTES >> 4
            or len(self.shape) > MAX_AXES
            or min(self.shape, default=1) < 0
        ):
            self._check()

    def _check(self) -> None:
        _check_axes(len(self.shape))
        if min(self.shape, default=0) < 0:
            raise ShapeError(f"{self} has a size below 0")
        # NumPy refuses a size that is too long also beside an empty one.
        count = math.prod(n for n in self.shape if n and not isinstance(n, SymbolicSize))
        if count * self.dtype.itemsize > MAX_BYTES:
            raise ShapeError(f"{self} has more than {MAX_BYTES} bytes")

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
        return f"{_name(self.dtype)}[{','.join(map(str, self.shape))}]"


@functools.cache  # NumPy puts it together anew each time
def _name(dtype: DType) -> str:
    return dtype.name


def as_sizes(shape: Any, least: int = 0) -> Shape:
    """Return a size or a sequence of sizes as a tuple; an error for anything else."""
    found = sizes(shape, least)
    _check_axes(len(found))
    return found


def around(shape: Shape, axis: int) -> tuple[int, int, int]:
    """Return the number of elements before, along and after an axis that is not negative."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _check_axes(count: int) -> None:
    if count > MAX_AXES:
        raise ShapeError(f"an array has at most {MAX_AXES} axes, not {count}")


Sizes = Annotated[Any, Kind("an integer >= 0 or a sequence of them", as_sizes, ShapeError)]


ALIGNMENT = 64  # bytes: where arrays that kernels use begin, for SIMD code


def aligned_empty(spec: Spec) -> Array:
    """Return an uninitialised array that begins at a multiple of `ALIGNMENT`."""
    raw = np.empty(spec.nbytes + ALIGNMENT - 1, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + spec.nbytes].view(spec.dtype).reshape(spec.shape)

"""Dtypes, shapes, and specs, which are both; conversion of users' values to arrays."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import ml_dtypes
import numpy as np

from minigraph.arguments import Kind, short_repr, sizes
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.symbolic import SymbolicSize

Array = Any  # np.ndarray on the CPU; each backend has its own type
DType = np.dtype[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = (BFLOAT16, *map(np.dtype, ("float16", "float32", "float64")))
INTEGERS = tuple(
    map(np.dtype, ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"))
)
BOOL = np.dtype(bool)
DTYPES = (*FLOATS, *INTEGERS, BOOL)
_CANONICAL = {dtype: dtype for dtype in DTYPES}  # one object for each, so that `is` compares them


def as_dtype(dtype: Any) -> DType:
    """Return a name, type or dtype as a dtype; DTypeError if minigraph does not support it."""
    try:
        if isinstance(dtype, str | type | np.dtype):
            if dtype == "bfloat16":
                return BFLOAT16
            return _CANONICAL[np.dtype(dtype).newbyteorder("=")]
    except Exception:  # NumPy's parser of names raises errors of many classes
        pass
    names = ", ".join(d.name for d in DTYPES)
    raise DTypeError(f"dtype {short_repr(dtype)} is not supported; use one of {names}")


DTypeLike = Annotated[Any, Kind("a dtype", as_dtype, DTypeError, none_is_default=True)]


@functools.cache
def can_cast(source: DType, target: DType) -> bool:
    """Whether NumPy's "same_kind" rule allows a cast from `source` to `target`."""
    return bool(np.can_cast(source, target, "same_kind"))


def as_array(value: Any, dtype: DType | None = None) -> Array:
    """Return `value` (numbers, sequences, arrays, DLPack producers) as a NumPy array.

    With `dtype`, cast by NumPy's "same_kind" rule.  DTypeError if the rule forbids the cast or a
    value does not fit.
    """
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":  # which NumPy lacks, so torch refuses
        bits = value.view(sys.modules["torch"].int16)
        return as_array(as_array(bits).view(BFLOAT16), dtype)
    try:
        if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
            value = np.from_dlpack(value)
        array = np.asarray(value)
    except GraphError:  # `value` is an expression
        raise
    except (ValueError, TypeError, RuntimeError, BufferError, MemoryError) as error:
        raise DTypeError(f"{type(value).__name__} is not an array: {error}") from None
    if array.dtype.kind in "OSU":  # objects and texts
        raise DTypeError(f"{short_repr(value)} is neither a number, an array nor an expression")
    array = array.astype(_CANONICAL.get(array.dtype) or as_dtype(array.dtype), copy=False)
    return array if dtype is None else same_kind(array, dtype)


def same_kind(
    array: Array, dtype: DType, by: Callable[[Array, DType], Array] | None = None
) -> Array:
    """Return an array cast to a dtype; DTypeError if NumPy's "same_kind" rule forbids the cast.

    by  function that casts; by default `cast`
    """
    if array.dtype == dtype:
        return array
    # NumPy makes an empty list float64.
    if array.size and not can_cast(array.dtype, dtype):
        raise DTypeError(f"{array.dtype.name} does not cast to {dtype.name} by the same_kind rule")
    return (by or cast)(array, dtype)


def cast(array: Array, dtype: DType) -> Array:
    """Return an array, on the host or on a device, in another dtype.

    Raises DTypeError, with the index, for a value that does not fit: a number out of an integer's
    range, or a finite number that overflows to infinity.
    """
    bounds = _bounds(array.dtype, dtype)
    if bounds is None or not array.size:
        return array.astype(dtype, copy=False)
    if dtype in FLOATS:
        try:
            with np.errstate(over="raise"):
                result = array.astype(dtype)
        except FloatingPointError:
            raise _misfit(array, dtype) from None
        # NumPy reports an overflow; devices and ml_dtypes do not.
        fits = isinstance(array, np.ndarray) and (dtype != BFLOAT16 or _are_finite(result))
        if fits or (np.isfinite(result) == np.isfinite(array)).all():
            return result
    elif bounds[0] - 1 < array.min().item() and array.max().item() < bounds[1] + 1:
        return array.astype(dtype)  # truncated
    raise _misfit(array, dtype)


def _are_finite(array: Array) -> bool:
    """Return whether all elements of a bfloat16 array are finite, ten times faster than NumPy."""
    bits = array.view(np.uint16)  # infinity is 0x7F80, -infinity 0xFF80, NaN is larger
    return bool(bits.max() < 0xFF80 and bits.view(np.int16).max() < 0x7F80)


@functools.cache
def _bounds(source: DType, target: DType) -> tuple[Any, Any] | None:
    """Return the lowest and the highest number of `target`; None if it holds all of `source`."""
    if target == BOOL:
        return None  # any number is true or false, as in NumPy and PyTorch
    (lowest, highest), (low, high) = map(limits, (source, target))
    finite = source not in FLOATS or target in FLOATS
    return None if finite and low <= lowest and highest <= high else (low, high)


def limits(dtype: DType) -> tuple[Any, Any]:
    """Return the lowest and the highest finite number of a dtype."""
    if dtype in FLOATS:
        largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        return -largest, largest
    return (0, 1) if dtype == BOOL else (np.iinfo(dtype).min, np.iinfo(dtype).max)


def _misfit(array: Array, dtype: DType) -> DTypeError:
    """Return the error that names the first value that does not fit into a dtype."""
    if not isinstance(array, np.ndarray):
        array = array.get()  # copy it from the device
    with np.errstate(all="ignore"):
        result = array.astype(dtype)
        overflows = np.isfinite(array) > np.isfinite(result)
        misfits = overflows if dtype in FLOATS else result != np.trunc(array)
    index = np.unravel_index(int(misfits.argmax()), array.shape)
    position = f" at {tuple(map(int, index))}" if index else ""
    return DTypeError(f"{array[index].item()!r}{position} does not fit into {dtype.name}")


Shape = tuple[int, ...]

MAX_AXES = 32  # NumPy's limit; NumPy computes ops with more axes than a kernel supports
MAX_BYTES = 1 << 62  # byte offsets have 64 bits


@dataclass(frozen=True)
class Spec:
    """The shape and dtype of a value.

    size  number of elements

    Raises ShapeError for a size below 0, and for too many axes or bytes.
    """

    shape: Shape
    dtype: DType = FLOATS[2]
    size: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        count = math.prod(self.shape)
        object.__setattr__(self, "size", count)
        if len(self.shape) > MAX_AXES:
            raise ShapeError(f"an array has at most {MAX_AXES} axes, not {len(self.shape)}")
        if isinstance(count, SymbolicSize):
            return
        if min(self.shape, default=0) < 0:
            raise ShapeError(f"{self} has a size below 0")
        if not 0 < count <= MAX_BYTES >> 4:
            # NumPy rejects a size that is too long even if another size is 0.
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


def as_specs(op: str, result: Any) -> tuple[Spec, ...]:
    """Return what `infer` of an op gave as a tuple of specs; GraphError if it is something else."""
    specs = result if isinstance(result, tuple) else (result,)
    for spec in specs:
        if not isinstance(spec, Spec):
            raise GraphError(f"{op}: infer returns a Spec, or a tuple of them, not {spec!r:.99}")
    return specs


@functools.cache  # NumPy computes the name at each access
def _name(dtype: DType) -> str:
    return dtype.name


def sizes_around(shape: Shape, axis: int) -> tuple[int, int, int]:
    """Return the products of the sizes before, along and after an axis >= 0."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


Sizes = Annotated[Any, Kind("an integer >= 0 or a sequence of them", sizes, ShapeError)]


ALIGNMENT = 64  # bytes: alignment of arrays for vector instructions


def aligned_empty(spec: Spec) -> Array:
    """Return an uninitialised array whose address is a multiple of `ALIGNMENT`."""
    raw = np.empty(spec.nbytes + ALIGNMENT - 1, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + spec.nbytes].view(spec.dtype).reshape(spec.shape)


class IndexRange(NamedTuple):
    """The valid integers of an op's input: low ... high - 1."""

    operand: int
    low: int
    high: int

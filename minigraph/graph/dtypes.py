"""The element types, and arrays of them from what users give."""

from __future__ import annotations

from typing import Annotated, Any

import ml_dtypes
import numpy as np

from minigraph.arguments import Kind, shown
from minigraph.errors import DTypeError, GraphError

Array = Any  # np.ndarray on the CPU; each backend has its own type
DType = np.dtype[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = (BFLOAT16, *map(np.dtype, ("float16", "float32", "float64")))
INTEGERS = tuple(
    map(np.dtype, ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"))
)
BOOL = np.dtype(bool)
DTYPES = (*FLOATS, *INTEGERS, BOOL)
_CANONICAL = {dtype: dtype for dtype in DTYPES}  # one object each, so `is` can compare them


def as_dtype(dtype: Any) -> DType:
    """Return the dtype that a name, a type or a dtype stands for; DTypeError if none of ours."""
    try:
        if isinstance(dtype, str | type | np.dtype):
            return _CANONICAL[
                BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype).newbyteorder("=")
            ]
    except Exception:  # NumPy raises what its parser of names meets
        pass
    names = ", ".join(d.name for d in DTYPES)
    raise DTypeError(f"dtype {shown(dtype)} is not supported; use one of {names}")


DTypeLike = Annotated[Any, Kind("a dtype", as_dtype, DTypeError, unset=True)]


def can_cast(source: DType, target: DType) -> bool:
    """Whether NumPy's "same_kind" rule lets a value of one dtype be stored as the other."""
    return bool(np.can_cast(source, target, "same_kind"))


def as_array(value: Any, dtype: DType | None = None) -> Array:
    """Return `value` (numbers, sequences, arrays, DLPack producers) as a NumPy array.

    With `dtype`, cast by NumPy's "same_kind" rule.  Raises DTypeError where that is not possible.
    """
    try:
        if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
            value = np.from_dlpack(value)
        array = np.asarray(value)
    except GraphError:  # of an expression
        raise
    except (ValueError, TypeError, RuntimeError, BufferError, MemoryError) as error:
        raise DTypeError(f"{type(value).__name__} is not an array: {error}") from None
    if array.dtype.kind in "OSU":  # objects and texts
        raise DTypeError(f"{shown(value)} is neither a number, an array nor an expression")
    given = as_dtype(array.dtype)
    if dtype is None or given == dtype:
        return array.astype(given, copy=False)
    # An empty list says nothing about its type.
    if array.size and not can_cast(given, dtype):
        raise DTypeError(f"{given.name} does not cast to {dtype.name} by the same_kind rule")
    with np.errstate(over="ignore"):  # 1e300 is infinity in float32
        return array.astype(dtype)

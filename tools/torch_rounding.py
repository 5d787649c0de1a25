"""Compare a result with PyTorch's, up to rounding."""

import ml_dtypes
import numpy as np

from minigraph.graph import FLOATS

ROUNDINGS = {"float64": 1 << 14}  # tolerance in units of epsilon; 64 in other dtypes


def difference(result, wide, theirs, scale):
    """Return in words how a result differs from PyTorch's; None if it does not.

    wide    PyTorch's result in float64
    theirs  PyTorch's result in the dtype of the inputs
    scale   the size of the terms of sums that may cancel
    """
    if result.shape != wide.shape:
        return f"shape {result.shape}, not {wide.shape}"
    is_float = result.dtype in FLOATS
    if is_float != (theirs.dtype in FLOATS) or (result.dtype == bool) != (theirs.dtype == bool):
        return f"dtype {result.dtype}, not {theirs.dtype}"
    with np.errstate(all="ignore"):
        wrong = _wrong(result, wide, theirs, scale) if is_float else result != theirs
    if not np.any(wrong):
        return None
    index = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    where = f"at {[*map(int, index)]} " if index else ""
    count = f"({int(np.sum(wrong))} of {wrong.size})"
    return f"{where}{result[index]}, not {wide[index]} or {theirs[index]} {count}"


def _wrong(result, wide, theirs, scale):
    """Where floats differ by more than rounding, and by far more than PyTorch's own results."""
    coarser = max(result.dtype, theirs.dtype, key=lambda dtype: float(ml_dtypes.finfo(dtype).eps))
    relative = ROUNDINGS.get(coarser.name, 64) * float(ml_dtypes.finfo(coarser).eps)
    x, y, z = (np.asarray(a, "float64") for a in (result, wide.astype(coarser), theirs))
    size = np.maximum(np.abs(y), np.finfo("float64").tiny)
    worst = (np.abs(z - y) / size)[np.isfinite(y) & np.isfinite(z)].max(initial=0)
    return off(x, y, max(relative, 16 * min(worst, 1)), relative * scale) & off(
        x, z, relative, relative * scale
    )


def off(x, y, relative, absolute):
    near = np.abs(x - y) <= relative * np.abs(y) + absolute
    return ~((near & np.isfinite(y)) | (x == y) | (np.isnan(x) & np.isnan(y)))


def largest(arrays):
    """Return the largest finite magnitude in arrays, at most 1e30, as the scale of rounding."""
    values = (np.abs(a[np.isfinite(a)]).max(initial=0) for a in arrays if a.dtype in FLOATS)
    return max((min(float(v), 1e30) for v in values), default=0.0)

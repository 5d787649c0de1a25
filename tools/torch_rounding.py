"""Whether a result is PyTorch's, but for rounding."""

import ml_dtypes
import numpy as np

from minigraph.graph import FLOATS

ROUNDINGS = {"float64": 1 << 14}  # that a result may differ by: 64 in other types


def difference(found, wide, own, scale):
    """Say what is wrong with a result; None if nothing is.

    scale  how large the terms of sums are that may cancel
    """
    if found.shape != wide.shape:
        return f"shape {found.shape}, not {wide.shape}"
    is_float = found.dtype in FLOATS
    if is_float != (own.dtype in FLOATS) or (found.dtype == bool) != (own.dtype == bool):
        return f"dtype {found.dtype}, not {own.dtype}"
    with np.errstate(all="ignore"):
        wrong = _wrong(found, wide, own, scale) if is_float else found != own
    if not np.any(wrong):
        return None
    at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    where = f"at {[*map(int, at)]} " if at else ""
    count = f"({int(np.sum(wrong))} of {wrong.size})"
    return f"{where}{found[at]}, not {wide[at]} or {own[at]} {count}"


def _wrong(found, wide, own, scale):
    """Where floats differ by more than rounding, or by far more than those of PyTorch do."""
    coarser = max(found.dtype, own.dtype, key=lambda dtype: float(ml_dtypes.finfo(dtype).eps))
    allowed = ROUNDINGS.get(coarser.name, 64) * float(ml_dtypes.finfo(coarser).eps)
    x, y, z = (np.asarray(a, "float64") for a in (found, wide.astype(coarser), own))
    size = np.maximum(np.abs(y), np.finfo("float64").tiny)
    worst = (np.abs(z - y) / size)[np.isfinite(y) & np.isfinite(z)].max(initial=0)
    return off(x, y, max(allowed, 16 * min(worst, 1)), allowed * scale) & off(
        x, z, allowed, allowed * scale
    )


def off(x, y, relative, absolute):
    near = np.abs(x - y) <= relative * np.abs(y) + absolute
    return ~((near & np.isfinite(y)) | (x == y) | (np.isnan(x) & np.isnan(y)))


def largest(arrays):
    """Return the largest finite number of arrays; a scale that makes sense for rounding."""
    values = (np.abs(a[np.isfinite(a)]).max(initial=0) for a in arrays if a.dtype in FLOATS)
    return max((min(float(v), 1e30) for v in values), default=0.0)

"""Borders around arrays: of one value, or of the array's own elements."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np

from minigraph.arguments import Kind, Scalar
from minigraph.errors import ShapeError
from minigraph.graph import Array, Node, Tensor, builder, from_sizes
from minigraph.ops.elementwise import as_operand
from minigraph.ops.indexing import Take
from minigraph.ops.slicing import Pad

NUMPY = {"replicate": "edge", "circular": "wrap"}  # torch's names of modes
Mode = Literal["constant", "reflect", "edge", "replicate", "wrap", "circular"]


INT64 = np.dtype(np.int64)
MANY = 2**20  # elements along an axis whose places are written down


def _widths(value: Any) -> Array:
    widths = np.asarray(value)
    if widths.dtype.kind not in "iu" or (widths < 0).any():
        raise ValueError
    return widths


WIDTHS = Kind("integers >= 0, of each axis (before, after)", _widths, ShapeError)


@builder
def pad(
    x: Tensor,
    widths: Annotated[Any, WIDTHS],
    constant_values: Scalar = 0,
    mode: Mode = "constant",
) -> Node:
    """Return x with a border, as `numpy.pad` does.

    widths  one number, one (before, after), or one pair for each axis
    mode    what the border is made of: "constant", of `constant_values`; "reflect", of x mirrored
            at its outermost elements; "edge" (torch's "replicate"), of its outermost elements;
            "wrap" (torch's "circular"), of x from its other side

    ShapeError for a border that is wider than what it repeats, as in torch.

    >>> cg.compile([], ops.pad([1, 2], (1, 2)))()
    array([0, 1, 2, 0, 0])
    """
    try:
        pairs = np.broadcast_to(widths, (x.ndim, 2)).tolist()
    except ValueError:
        text = f"widths of shape {widths.shape} are no (before, after) for {x.ndim} axes"
        raise ShapeError(text) from None
    as_operand(constant_values, x.dtype)  # DTypeError if it does not fit
    if not np.any(pairs):
        return x
    if mode == "constant":
        low, high = (tuple(side) for side in zip(*pairs, strict=True))
        return Pad(low, high, (0,) * x.ndim, constant_values)(x)
    for axis in reversed(range(x.ndim)):  # so that most elements move in the longest rows
        if any(pairs[axis]):
            n, widths = x.shape[axis], tuple(pairs[axis])
            places = from_sizes("pad", _places, (n, widths, mode), (n + sum(widths),), INT64)
            x = Take(axis)(x, places)
    return x


def _places(size: int, widths: tuple[int, int], mode: str) -> Array:
    """Return which elements stand along a padded axis of `size` elements."""
    mode = NUMPY.get(mode, mode)
    most = {"reflect": size - 1, "wrap": size, "edge": MANY if size else 0}[mode]
    if max(widths) > most:
        raise ShapeError(
            f"an axis of {size} elements takes a border of mode {mode!r} up to {max(most, 0)}, "
            f"not {max(widths)}"
        )
    return np.pad(np.arange(size), widths, mode)  # type: ignore[call-overload]

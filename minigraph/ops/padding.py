"""Borders around arrays: of one value, or of the array's own elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np

from minigraph.arguments import Kind, Scalar, with_predicate
from minigraph.errors import ShapeError
from minigraph.graph import Array, Node, Tensor, builder, from_sizes
from minigraph.ops.elementwise import as_operand
from minigraph.ops.indexing import Take
from minigraph.ops.shape import reshape
from minigraph.ops.slicing import Pad

NUMPY_MODES = {"replicate": "edge", "circular": "wrap"}  # by torch's names
Mode = Literal["constant", "reflect", "edge", "replicate", "wrap", "circular"]


INT64 = np.dtype(np.int64)
LEADING_AXES = 2  # of images and channels, along which the indices of padded axes repeat
MAX_LISTED_ELEMENTS = 2**20  # elements along an axis whose indices are a constant


NOT_NEGATIVE = with_predicate(lambda n: n.dtype.kind in "iu" and (n >= 0).all(), np.asarray)
WIDTHS = Kind("integers >= 0, of each axis (before, after)", NOT_NEGATIVE, ShapeError)


@builder
def pad(
    x: Tensor, widths: Annotated[Any, WIDTHS], constant_values: Scalar = 0, mode: Mode = "constant"
) -> Node:
    """Return x with a border, as `numpy.pad` does.

    widths  one number, one (before, after), or one pair for each axis
    mode    "constant": `constant_values`; "reflect": x mirrored at its outermost elements; "edge"
            (torch's "replicate"): the outermost elements; "wrap" (torch's "circular"): x from its
            other side

    ShapeError for a border that is wider than the elements that it repeats, as in torch.

    >>> cg.compile([], ops.pad([1, 2], (1, 2)))()
    array([0, 1, 2, 0, 0])
    """
    try:
        pairs = np.broadcast_to(widths, (x.ndim, 2)).tolist()
    except ValueError:
        text = f"widths of shape {widths.shape} are not (before, after) of {x.ndim} axes"
        raise ShapeError(text) from None
    as_operand(constant_values, x.dtype)  # DTypeError if it does not fit
    if not np.any(pairs):
        return x
    if mode == "constant":
        low, high = (tuple(side) for side in zip(*pairs, strict=True))
        return Pad(low, high, (0,) * x.ndim, constant_values)(x)
    axes = [axis for axis, pair in enumerate(pairs) if any(pair)]
    while axes:  # from the last, so that most elements move in the longest rows
        stop = axes.pop() + 1
        start = stop - 1
        while axes and axes[-1] == start - 1 >= LEADING_AXES:
            start = axes.pop()
        inner, borders = x.shape[start:stop], tuple(map(tuple, pairs[start:stop]))
        sizes = tuple(n + sum(border) for n, border in zip(inner, borders, strict=True))
        count = (math.prod(sizes),)
        indices = from_sizes("pad", _indices, (mode, borders, *inner), count, INT64)
        before, after = x.shape[:start], x.shape[stop:]
        flat = reshape(x, (*before, math.prod(inner), *after))
        x = reshape(Take(start)(flat, indices), (*before, *sizes, *after))
    return x


def _indices(mode: str, borders: Sequence[tuple[int, int]], *sizes: int) -> Array:
    """Return for each element of padded axes the index in axes of `sizes`, merged to one axis."""
    mode = NUMPY_MODES.get(mode, mode)
    for size, border in zip(sizes, borders, strict=True):
        edge_limit = MAX_LISTED_ELEMENTS if size else 0
        limit = {"reflect": max(size - 1, 0), "wrap": size, "edge": edge_limit}[mode]
        if max(border) > limit:
            raise ShapeError(
                f"an axis of {size} elements takes a border of mode {mode!r} up to {limit}, "
                f"not {max(border)}"
            )
    indices = np.arange(math.prod(sizes), dtype=INT64).reshape(sizes)
    return np.pad(indices, borders, mode).reshape(-1)  # type: ignore[call-overload]

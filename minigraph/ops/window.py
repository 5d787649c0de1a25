"""Sliding windows over images: the arithmetic that convolution and pooling share."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from minigraph.arguments import Kind, one_or_several
from minigraph.errors import ShapeError
from minigraph.graph import Shape

Pair = tuple[int, int]
Pairs = tuple[Pair, ...]  # (before, after) of each axis


MAX_INT32 = 2**31 - 1  # oneDNN and cuDNN compute with 32-bit integers


def sides(minimum: int, as_pair: bool = False) -> Kind:
    """Return the kind of integers >= `minimum` and pairs of them; `as_pair`: parsed to a pair."""

    def parse(value: Any) -> int | Pair:
        parsed = one_or_several(value)
        height, width = (parsed, parsed) if isinstance(parsed, int) else parsed
        if min(height, width) < minimum or max(height, width) > MAX_INT32:
            raise ValueError
        return parsed if isinstance(parsed, int) and not as_pair else (height, width)

    return Kind(f"an integer from {minimum} to {MAX_INT32}, or a pair of them", parse, ShapeError)


def _output_size(value: Any) -> int | tuple[int | None, ...] | None:
    if not isinstance(value, tuple | list):
        return None if value is None else POSITIVE.parse(value)
    parsed = POSITIVE.parse([1 if n is None else n for n in value])
    return tuple(None if size is None else n for size, n in zip(value, parsed, strict=True))


POSITIVE = sides(1)
Window = Annotated[Any, sides(1, as_pair=True)]
Border = Annotated[Any, sides(0, as_pair=True)]
OutputSize = Annotated[
    Any, replace(POSITIVE, description=f"None, {POSITIVE.description}", parse=_output_size)
]


def or_named(kind: Kind) -> Kind:
    """Return a kind that also takes the paddings "same" and "valid"."""

    def parse(value: Any) -> Any:
        return value if isinstance(value, str) and value in ("same", "valid") else kind.parse(value)

    return replace(kind, description=f'{kind.description}, "same" or "valid"', parse=parse)


ConvBorder = Annotated[Any, or_named(sides(0, as_pair=True))]


def around_conv(padding: Any, window: Shape, stride: Shape, dilation: Shape) -> Pairs:
    """Return the padding of a convolution as (before, after) of each axis.

    "same" keeps the size, with an odd pixel after x as in torch; ShapeError unless the stride is 1.
    """
    if padding == "valid":
        padding = (0,) * len(window)
    if padding != "same":
        return tuple((n, n) for n in padding)
    if any(n != 1 for n in stride):
        raise ShapeError(f'padding "same" keeps the size, so the stride is 1, not {stride}')
    total = [d * (k - 1) for k, d in zip(window, dilation, strict=True)]
    return tuple((n // 2, n - n // 2) for n in total)


def steps(size: int, window: int, stride: int, padding: Pair, dilation: int = 1) -> int:
    """Return the number of windows that fit along an axis; ShapeError if none does."""
    reach = dilation * (window - 1) + 1
    if size + sum(padding) < max(reach, 1):
        raise ShapeError(f"a window of {reach} does not fit {size} pixels with padding {padding}")
    return (size + sum(padding) - reach) // stride + 1

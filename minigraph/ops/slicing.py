"""Slices of arrays, arrays in reverse order, and borders, the gradients of slices."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from minigraph.arguments import Integers, short_repr
from minigraph.errors import ShapeError
from minigraph.graph import (
    Array,
    Node,
    Op,
    Shape,
    Spec,
    SymbolicSize,
    Tensor,
    UndecidedSize,
    builder,
)
from minigraph.ops.shape import Alike, Ints, normalize_axes, reshape
from minigraph.symbolic import positive_part, same_shape


class Windowed(Op):
    """An op whose inputs are windows of its result, or whose result is a window of its input.

    value  of the elements around the only input
    """

    value = 0.0

    def offsets(self, xs: Sequence[Shape], y: Shape) -> Sequence[Ints] | None:
        """Return the offset of each input in the result along each axis; None if it is dilated."""
        raise NotImplementedError


class Slice(Windowed):
    """x[start:stop:step] along every axis, with steps above 0."""

    start: Ints
    stop: Ints
    step: Ints

    is_view = True

    def infer(self, x: Spec) -> Spec:
        windows = [*zip(self.start, self.stop, self.step, x.shape, strict=True)]
        for start, stop, _, size in windows:
            with suppress(UndecidedSize):  # the call checks it
                if not 0 <= start <= stop <= size:
                    index = start - size if start < 0 else start  # as the user wrote it
                    text = f"index {short_repr(index)}"
                    if stop - start != 1:
                        text = f"slice {short_repr(start)}:{short_repr(stop)}"
                    raise ShapeError(f"{text} is out of range for an axis of length {size}")
        return Spec(tuple((b - a + t - 1) // t for a, b, t, _ in windows), x.dtype)

    def offsets(self, xs: Sequence[Shape], y: Shape) -> Sequence[Ints] | None:
        single = any(n == 1 < m for n, m in zip(y, xs[0], strict=True))
        return None if single or {*self.step} - {1} else [tuple(-a for a in self.start)]

    def forward(self, x: Array) -> Array:
        return x[tuple(map(builtins.slice, self.start, self.stop, self.step))]

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        spans = map(_span, dy.shape, (t - 1 for t in self.step))
        high = tuple(n - a - s for n, a, s in zip(x.shape, self.start, spans, strict=True))
        return (Pad(self.start, high, tuple(t - 1 for t in self.step))(dy),)


class Flip(Alike):
    """x with the elements along `axes` in reverse order."""

    axes: Ints

    is_view = True

    def forward(self, x: Array) -> Array:
        return np.flip(x, self.axes)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (Flip(self.axes)(dy),)


class Pad(Windowed):
    """x with `value` around it (`low` before, `high` after) and `interior` times between elements.

    The interior makes it the gradient of a slice with steps (XLA's Pad has the same form).
    """

    low: Ints
    high: Ints
    interior: Ints
    value: float = 0.0

    def infer(self, x: Spec) -> Spec:
        widths = (*self.low, *self.high, *self.interior)
        if any(n < 0 for n in widths if not isinstance(n, SymbolicSize)):  # a call checks those
            raise ShapeError(f"a border of {self.low} and {self.high} elements has a width below 0")
        sizes = zip(x.shape, self.low, self.high, self.interior, strict=True)
        return Spec(tuple(a + b + _span(n, i) for n, a, b, i in sizes), x.dtype)

    def offsets(self, xs: Sequence[Shape], y: Shape) -> Sequence[Ints] | None:
        return None if any(self.interior) else [self.low]

    def forward(self, x: Array) -> Array:
        y = np.full(self.infer(Spec(x.shape, x.dtype)).shape, self.value, x.dtype)
        y[self._inside(y.shape)] = x
        return y

    def _inside(self, shape: Shape) -> tuple[builtins.slice, ...]:
        return tuple(
            builtins.slice(a, n - b, i + 1)
            for n, a, b, i in zip(shape, self.low, self.high, self.interior, strict=True)
        )

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        inside = self._inside(y.shape)
        start, stop, step = zip(*((s.start, s.stop, s.step) for s in inside), strict=True)
        return (Slice(start, stop, step)(dy),)


def _span(count: int, interior: int) -> int:
    """Return the length of `count` elements with `interior` others between neighbours."""
    return count + positive_part(count - 1) * interior


@builder
def slice(x: Tensor, start: Integers, stop: Integers, step: Integers = 1) -> Node:
    """Return x[start:stop:step] along the leading axes; each is an int, or one int for each axis.

    >>> cg.compile([], ops.slice([1, 2, 3, 4], 1, 4, 2))()
    array([2, 4])
    """
    bounds = (start, stop, step)
    count = max(map(len, bounds))
    rows = [b * count if len(b) == 1 else b for b in bounds]
    if any(len(row) != count for row in rows) or count > x.ndim:
        raise ShapeError(f"start {start}, stop {stop}, step {step} do not fit {x.ndim} axes")
    return getitem(x, tuple(map(builtins.slice, *rows)))


def first_elements(x: Node, axis: int, stop: int) -> Node:
    """Return x[:stop] along an axis of constant length; a longer `stop` of a call is an error.

    So the size of the result is `stop`, not the minimum of `stop` and the length: a table of
    position embeddings that is cut to a text has the text's length.
    """
    sizes = [*x.shape]
    sizes[axis] = stop
    return Slice((0,) * x.ndim, tuple(sizes), (1,) * x.ndim)(x)


@builder
def flip(x: Tensor, axis: Integers | None = None) -> Node:
    """Return x with the elements along `axis` (None: all axes) in reverse order.

    >>> cg.compile([], ops.flip([1, 2, 3]))()
    array([3, 2, 1])
    """
    return Flip(normalize_axes(axis, x.ndim))(x)


@builder
def getitem(x: Tensor, index: Any) -> Node:
    """Return x[index] for ints, slices, `...` and None, which are known when the graph is built."""
    items = index if isinstance(index, tuple) else (index,)
    named = sum(1 for item in items if item is not None and item is not ...)
    dots = sum(1 for item in items if item is ...)
    if named > x.ndim or dots > 1:
        ellipses = f", and {dots} ..." if dots else ""
        raise ShapeError(f"{named} indices{ellipses} for the {x.ndim} axes of shape {x.shape}")
    at = items.index(...) if dots else len(items)
    whole = (builtins.slice(None),) * (x.ndim - named)
    windows: list[tuple[int, int, int]] = []
    flipped: list[int] = []
    shape: list[int] = []
    for item in (*items[:at], *whole, *items[at + 1 :]):
        if item is None:
            shape.append(1)
            continue
        window, reverse, sizes = _window(item, x.shape[len(windows)])
        if reverse:
            flipped.append(len(windows))
        windows.append(window)
        shape.extend(sizes)
    y = x
    if not all(same_shape(w, (0, n, 1)) for w, n in zip(windows, x.shape, strict=True)):
        start, stop, step = zip(*windows, strict=True)
        y = Slice(start, stop, step)(y)
    if flipped:
        y = Flip(tuple(flipped))(y)
    return reshape(y, shape)


def _window(item: Any, size: int) -> tuple[tuple[int, int, int], bool, list[int]]:
    """Return for one axis (start, stop, step > 0), whether to reverse it, and its remaining sizes.

    The size and the index may be symbolic.
    """

    def from_front(index: Any) -> int:
        if isinstance(index, Node):
            raise TypeError("only calls know its ends; x[i + ops.arange(n)] has n elements from i")
        if not isinstance(index, SymbolicSize):
            index = operator.index(index)
        elif not index.is_integer:
            raise TypeError(f"{index} is not an integer")
        is_negative = positive_part(-index) - positive_part(-index - 1)  # 1 or 0
        return index + size * is_negative

    def bound(index: Any, default: int, minimum: int) -> int:
        """Return a bound of a slice, limited to minimum ... minimum + size."""
        if index is None:
            return default
        bounded = minimum + positive_part(from_front(index) - minimum)
        return bounded - positive_part(bounded - minimum - size)

    try:
        if not isinstance(item, builtins.slice):
            index = from_front(item)
            return (index, index + 1, 1), False, []
        step = 1 if item.step is None else operator.index(item.step)
        if not step:
            raise ValueError("slice step cannot be zero")
        if step > 0:
            low, high = bound(item.start, 0, 0), bound(item.stop, size, 0)
            high = low + positive_part(high - low)
        else:
            first, stop = bound(item.start, size - 1, -1), bound(item.stop, -1, -1)
            count = (positive_part(first - stop) - step - 1) // -step
            low, high = first + 1 - _span(count, -step - 1), first + 1
    except (TypeError, ValueError) as error:
        raise ShapeError(f"index {short_repr(item)}: {error}") from None
    distance = abs(step)
    return (low, high, distance), step < 0, [(high - low + distance - 1) // distance]

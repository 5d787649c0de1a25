"""Ops that rearrange elements: what they do depends on shapes, not on values."""

from __future__ import annotations

import builtins
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from minigraph.arguments import Axis, Integers, Kind, Sections
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import (
    Array,
    Node,
    Op,
    Operand,
    Shape,
    Sizes,
    Spec,
    SymbolicSize,
    as_node,
    as_sizes,
    builder,
    flat,
)
from minigraph.ops.elementwise import broadcast_shapes, promote
from minigraph.symbolic import UndecidedSize

Ints = tuple[int, ...]
KNOWN = (int, np.integer, SymbolicSize, builtins.slice)  # of an index, when the graph is built


class Reshape(Op):
    """The same elements in row-major order, in another shape."""

    shape: Shape

    is_view = True
    keeps_order = True

    def infer(self, x: Spec) -> Spec:
        if x.size != math.prod(self.shape):
            raise ShapeError(
                f"{x.size} elements do not fit shape {self.shape}, which has "
                f"{math.prod(self.shape)}; -1 stands for one size that fits"
            )
        return Spec(self.shape, x.dtype)

    def forward(self, x: Array) -> Array:
        return x.reshape(self.shape)

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...] | None:
        if [n for n in x if n != 1] != [n for n in y if n != 1]:
            return None
        longer = iter([i for i, n in enumerate(x) if n != 1])
        return tuple(None if n == 1 else next(longer) for n in y)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (reshape(dy, x.shape),)


class PermuteDims(Op):
    """The axes in another order: axis i of the result is axis `axes[i]` of x."""

    axes: Ints

    is_view = True

    def infer(self, x: Spec) -> Spec:
        if sorted(self.axes) != list(range(len(x.shape))):
            raise ShapeError(f"axes {self.axes} are no order of the {len(x.shape)} axes")
        return Spec(tuple(x.shape[a] for a in self.axes), x.dtype)

    def forward(self, x: Array) -> Array:
        return x.transpose(self.axes)

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...]:
        return self.axes

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (permute_dims(dy, tuple(np.argsort(self.axes).tolist())),)


class BroadcastTo(Op):
    """x repeated along new leading axes and along axes of length 1."""

    shape: Shape

    is_view = True

    def infer(self, x: Spec) -> Spec:
        if broadcast_shapes(x.shape, self.shape) != self.shape:
            raise ShapeError(f"shape {x.shape} does not broadcast to {self.shape}")
        return Spec(self.shape, x.dtype)

    def forward(self, x: Array) -> Array:
        return np.broadcast_to(x, self.shape)

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...]:
        lead = len(y) - len(x)
        return (None,) * lead + tuple(None if n == 1 else i for i, n in enumerate(x))

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy,)  # mg.grad sums it down to the shape of x


class Slice(Op):
    """x[start:stop:step] along every axis, with steps above 0."""

    start: Ints
    stop: Ints
    step: Ints

    is_view = True

    def infer(self, x: Spec) -> Spec:
        windows = [*zip(self.start, self.stop, self.step, x.shape, strict=True)]
        for start, stop, _, size in windows:
            if stop > size or start > stop:
                raise ShapeError(f"there is no slice {start}:{stop} of an axis of length {size}")
        return Spec(tuple((b - a + t - 1) // t for a, b, t, _ in windows), x.dtype)

    def forward(self, x: Array) -> Array:
        return x[tuple(map(builtins.slice, self.start, self.stop, self.step))]

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        steps = zip(dy.shape, self.step, strict=True)
        spans = [n if t == 1 or not n else (n - 1) * t + 1 for n, t in steps]
        high = tuple(n - a - s for n, a, s in zip(x.shape, self.start, spans, strict=True))
        return (Pad(self.start, high, tuple(t - 1 for t in self.step))(dy),)


class Flip(Op):
    """x with the elements along `axes` in reverse order."""

    axes: Ints

    is_view = True

    def infer(self, x: Spec) -> Spec:
        return x

    def forward(self, x: Array) -> Array:
        return np.flip(x, self.axes)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (Flip(self.axes)(dy),)


class Pad(Op):
    """x with `value` around it (`low` before, `high` after) and `interior` times between elements.

    The interior makes it the gradient of a slice with steps (XLA's Pad has the same form).
    """

    low: Ints
    high: Ints
    interior: Ints
    value: float = 0.0

    def infer(self, x: Spec) -> Spec:
        sizes = zip(x.shape, self.low, self.high, self.interior, strict=True)
        return Spec(tuple(a + b + n + max(n - 1, 0) * i for n, a, b, i in sizes), x.dtype)

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


class Concat(Op):
    """The inputs one after the other along `axis`."""

    axis: int

    def infer(self, *xs: Spec) -> Spec:
        a = self.axis
        for x in xs:
            rest = x.shape[:a] + x.shape[a + 1 :]
            if rest != xs[0].shape[:a] + xs[0].shape[a + 1 :]:
                shapes = f"{xs[0].shape} and {x.shape}"
                raise ShapeError(f"the shapes differ in another axis than {a}: {shapes}")
            if x.dtype != xs[0].dtype:
                raise DTypeError("the dtypes differ")
        size = builtins.sum(x.shape[a] for x in xs)
        return Spec((*xs[0].shape[:a], size, *xs[0].shape[a + 1 :]), xs[0].dtype)

    def forward(self, *xs: Array) -> Array:
        return np.concatenate(xs, self.axis)

    def grad(self, dy: Node, y: Node, *xs: Node) -> tuple[Node, ...]:
        ends = [*itertools.accumulate((x.shape[self.axis] for x in xs), initial=0)]
        return tuple(_part(dy, self.axis, *ends[i : i + 2]) for i in range(len(xs)))


def paddings(nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """Return which of the nodes are arrays with a border of zeros, and the others."""
    padded = [x for x in nodes if isinstance(x.op, Pad) and not x.op.value]
    return padded, [x for x in nodes if not isinstance(x.op, Pad) or x.op.value]


def join(padded: Sequence[Node]) -> Node | None:
    """Return the sum of such arrays as a concatenation; None if they overlap or leave gaps."""
    pads = [x.op for x in padded if isinstance(x.op, Pad)]
    shape, parts = padded[0].shape, [x.inputs[0] for x in padded]
    try:
        short = [a for a, n in enumerate(shape) if any(x.shape[a] != n for x in parts)]
        if len(short) != 1 or any(any(op.interior) for op in pads):
            return None
        (axis,) = short
        starts = [op.low[axis] for op in pads]
        order = sorted(range(len(parts)), key=lambda i: (starts[i], parts[i].shape[axis]))
        end = 0
        for i in order:
            if starts[i] != end:
                return None
            end += parts[i].shape[axis]
        return Concat(axis)(*(parts[i] for i in order)) if end == shape[axis] else None
    except UndecidedSize:
        return None


class StopGradient(Op):
    """x, which `mg.grad` treats as a constant."""

    is_view = True
    keeps_order = True

    def infer(self, x: Spec) -> Spec:
        return x

    def forward(self, x: Array) -> Array:
        return x

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...]:
        return tuple(range(len(x)))

    grad = flat


def matrices(x: Any) -> Node:
    """Return x (..., rows, columns) as an expression; ShapeError for fewer axes."""
    x = as_node(x)
    if x.ndim < 2:
        raise ShapeError(f"x has shape {x.shape}; it is (..., rows, columns)")
    return x


def normalize_axis(axis: int, ndim: int) -> int:
    """Return `axis` counted from the front; ShapeError if there is no such axis."""
    if not -ndim <= axis < ndim:
        raise ShapeError(
            f"axis {axis} does not exist; there are {ndim} axes"
            + (f", {-ndim} to {ndim - 1}" if ndim else "")
        )
    return axis % ndim


def normalize_axes(axes: Ints | None, ndim: int) -> Ints:
    """Return `axes` (None: all) counted from the front and sorted; each must be there once."""
    if axes is None:
        return tuple(range(ndim))
    counted = sorted(normalize_axis(axis, ndim) for axis in axes)
    if len(set(counted)) < len(counted):
        raise ShapeError(f"axis {axes} names an axis twice")
    return tuple(counted)


def _partial_sizes(shape: Any) -> Shape:
    return as_sizes(shape, -1)


PARTIAL = Kind("an integer >= -1 or a sequence of them", _partial_sizes, ShapeError)


@builder
def reshape(x: Operand, shape: Annotated[Any, PARTIAL]) -> Node:
    """Return the elements of x in row-major order as `shape`; one size may be -1.

    >>> cg.compile([], ops.reshape([1, 2, 3, 4], (2, -1)))()
    array([[1, 2],
           [3, 4]])
    """
    x = as_node(x)
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        if shape.count(-1) > 1 or known == 0 or x.size % known:
            raise ShapeError(
                f"no size for -1 makes {x.size} elements fit shape {shape}; only one size may be -1"
            )
        shape = tuple(x.size // known if n == -1 else n for n in shape)
    return x if shape == x.shape else Reshape(shape)(x)


@builder
def permute_dims(x: Operand, axes: Integers) -> Node:
    """Return x with its axes in the order `axes`.

    >>> ops.permute_dims(mg.input("x", (2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    x = as_node(x)
    order = tuple(normalize_axis(axis, x.ndim) for axis in axes)
    return x if order == tuple(range(x.ndim)) else PermuteDims(order)(x)


@builder
def broadcast_to(x: Operand, shape: Sizes) -> Node:
    """Return x repeated to `shape` by NumPy's rule.

    >>> cg.compile([], ops.broadcast_to([1, 2], (2, 2)))()
    array([[1, 2],
           [1, 2]])
    """
    x = as_node(x)
    return x if shape == x.shape else BroadcastTo(shape)(x)


@builder
def expand_dims(x: Operand, axis: Integers = 0) -> Node:
    """Return x with axes of length 1 inserted, so that they are `axis` of the result.

    >>> ops.expand_dims(mg.input("x", (2, 3)), 0).shape
    (1, 2, 3)
    """
    x = as_node(x)
    ndim = x.ndim + len(axis)
    new = normalize_axes(axis, ndim)
    sizes = iter(x.shape)
    return reshape(x, [1 if i in new else next(sizes) for i in range(ndim)])


@builder
def squeeze(x: Operand, axis: Integers | None = None) -> Node:
    """Return x without the axes `axis`, which have length 1; None: without all such axes.

    >>> ops.squeeze(mg.input("x", (2, 1, 3)), 1).shape
    (2, 3)
    """
    x = as_node(x)
    if axis is None:
        return reshape(x, [n for n in x.shape if n != 1])
    axes = normalize_axes(axis, x.ndim)
    if any(x.shape[a] != 1 for a in axes):
        raise ShapeError(f"axis {axis} of shape {x.shape} is longer than 1, so it stays")
    return reshape(x, [n for i, n in enumerate(x.shape) if i not in axes])


def _joined(xs: Any) -> tuple[Node, ...]:
    if isinstance(xs, Node) and isinstance((*xs.shape, 0)[0], SymbolicSize):
        raise TypeError  # how many rows it has is not known
    nodes = promote(*xs)
    if not nodes:
        raise ValueError
    return nodes


# The rows of an array or an expression are a sequence, too.
JOINED = Kind("a sequence of one array or more", _joined)


@builder
def concat(xs: Annotated[Sequence[Any], JOINED], axis: Axis | None = 0) -> Node:
    """Return the arrays joined along `axis`; with None each is flattened first.

    >>> cg.compile([], ops.concat([[1, 2], [3]]))()
    array([1, 2, 3])
    """
    if axis is None:
        xs, axis = tuple(reshape(x, -1) for x in xs), 0
    if len({x.ndim for x in xs}) > 1:
        raise ShapeError("the arrays have different numbers of axes")
    return Concat(normalize_axis(axis, xs[0].ndim))(*xs)


@builder
def stack(xs: Annotated[Sequence[Any], JOINED], axis: Axis = 0) -> Node:
    """Return arrays of one shape joined along a new axis, which is `axis` of the result.

    >>> cg.compile([], ops.stack([[1, 2], [3, 4]], axis=1))()
    array([[1, 3],
           [2, 4]])
    """
    if len({x.shape for x in xs}) > 1:
        shapes = " and ".join(dict.fromkeys(str(x.shape) for x in xs))
        raise ShapeError(f"the arrays have different shapes: {shapes}; concat joins such arrays")
    return concat([expand_dims(x, axis) for x in xs], axis)


@builder
def split(x: Operand, sections_or_indices: Sections, axis: Axis = 0) -> list[Node]:
    """Return pieces of x along `axis`: so many equal ones, or cut before the given indices.

    >>> cg.compile([], ops.split([1, 2, 3, 4], 2))()
    [array([1, 2]), array([3, 4])]
    """
    x = as_node(x)
    axis = normalize_axis(axis, x.ndim)
    size = x.shape[axis]
    cuts = sections_or_indices
    if isinstance(cuts, int):
        if cuts < 1 or size % cuts:
            instead = "a list says where sections begin, as in numpy.split"
            if isinstance(size, SymbolicSize) and cuts > 0:
                instead = f"an input of '{cuts}*n' rows is a multiple; {instead}"
            raise ShapeError(
                f"axis {axis} of length {size} has no {cuts} equal sections; {instead}"
            )
        cuts = [size // cuts * i for i in range(1, cuts)]
    before = (builtins.slice(None),) * axis
    pairs = zip([None, *cuts], [*cuts, None], strict=True)
    return [getitem(x, (*before, builtins.slice(a, b))) for a, b in pairs]


@builder
def slice(x: Operand, start: Integers, stop: Integers, step: Integers = 1) -> Node:
    """Return x[start:stop:step] along the leading axes; each an int or one int an axis.

    >>> cg.compile([], ops.slice([1, 2, 3, 4], 1, 4, 2))()
    array([2, 4])
    """
    x = as_node(x)
    bounds = (start, stop, step)
    count = max(map(len, bounds))
    rows = [b * count if len(b) == 1 else b for b in bounds]
    if any(len(row) != count for row in rows) or count > x.ndim:
        raise ShapeError(f"start {start}, stop {stop}, step {step} do not fit {x.ndim} axes")
    return getitem(x, tuple(map(builtins.slice, *rows)))


@builder
def flip(x: Operand, axis: Integers | None = None) -> Node:
    """Return x with the elements along `axis` (None: all axes) in reverse order.

    >>> cg.compile([], ops.flip([1, 2, 3]))()
    array([3, 2, 1])
    """
    x = as_node(x)
    return Flip(normalize_axes(axis, x.ndim))(x)


@builder
def stop_gradient(x: Operand) -> Node:
    """Return x, which `mg.grad` treats as a constant.

    >>> cg.compile([], ops.stop_gradient([1.0, 2.0]))()
    array([1., 2.])
    """
    return StopGradient()(as_node(x))


@builder
def getitem(x: Operand, index: Any) -> Node:
    """Return x[index] for ints, slices, `...` and None, which are known when the graph is built."""
    x = as_node(x)
    items = index if isinstance(index, tuple) else (index,)
    for item in items:
        if not (item is None or item is ... or isinstance(item, KNOWN)):
            what = type(item).__name__
            raise GraphError(
                f"an index is made of ints, slices, ... and None, not {what}; use take"
            )
        if isinstance(item, bool):
            raise GraphError("a bool is no index; use where")
    named = builtins.sum(1 for item in items if item is not None and item is not ...)
    dots = builtins.sum(1 for item in items if item is ...)
    if named > x.ndim or dots > 1:
        several = f", and {dots} ..." if dots else ""
        raise ShapeError(f"{named} indices{several} for the {x.ndim} axes of shape {x.shape}")
    at = items.index(...) if dots else len(items)
    whole = (builtins.slice(None),) * (x.ndim - named)
    windows: list[tuple[int, int, int]] = []
    flipped: list[int] = []
    shape: list[int] = []
    for item in (*items[:at], *whole, *items[at + 1 :]):
        if item is None:
            shape.append(1)
            continue
        window, reverse, kept = _window(item, x.shape[len(windows)])
        if reverse:
            flipped.append(len(windows))
        windows.append(window)
        shape.extend(kept)
    y = x
    if any(w != (0, n, 1) for w, n in zip(windows, x.shape, strict=True)):
        start, stop, step = zip(*windows, strict=True)
        y = Slice(start, stop, step)(y)
    if flipped:
        y = Flip(tuple(flipped))(y)
    return reshape(y, shape)


def _part(x: Node, axis: int, start: int, stop: int) -> Node:
    """Return x[start:stop] along `axis`."""
    low, high = [0] * x.ndim, [*x.shape]
    low[axis], high[axis] = start, stop
    return Slice(tuple(low), tuple(high), (1,) * x.ndim)(x)


def _window(item: Any, size: int) -> tuple[tuple[int, int, int], bool, list[int]]:
    """Return (start, stop, step > 0), whether to reverse, and the sizes that stay, of one axis."""
    if isinstance(size, SymbolicSize):
        return _window_of_unknown(item, size)
    if not isinstance(item, builtins.slice):
        if not -size <= item < size:
            raise ShapeError(f"index {item} is out of range for an axis of length {size}")
        at = int(item) % size
        return (at, at + 1, 1), False, []
    try:
        steps = range(*item.indices(size))
    except (TypeError, ValueError) as error:
        raise ShapeError(f"index {item}: {error}") from None
    if not steps:
        return (0, 0, 1), False, [0]
    low, high = min(steps[0], steps[-1]), max(steps[0], steps[-1])
    return (low, high + 1, builtins.abs(steps.step)), steps.step < 0, [len(steps)]


def _window_of_unknown(item: Any, size: int) -> tuple[tuple[int, int, int], bool, list[int]]:
    """As `_window`, of an axis whose length the calls give.

    Ends are not cut to the length: a call in which the axis is shorter raises ShapeError.
    """

    def end(given: int | None, default: int) -> int:
        if given is None:
            return default
        if isinstance(given, SymbolicSize):
            return given
        return operator.index(given) + (size if given < 0 else 0)

    if not isinstance(item, builtins.slice):
        at = end(item, 0)
        return (at, at + 1, 1), False, []
    step = 1 if item.step is None else operator.index(item.step)
    if step == -1 and (item.start, item.stop) == (None, None):
        return (0, size, 1), True, [size]
    if step < 1:
        raise ShapeError(f"index {item} of an axis whose length calls give takes a step above 0")
    low, high = end(item.start, 0), end(item.stop, size)
    return (low, high, step), False, [(high - low + step - 1) // step]

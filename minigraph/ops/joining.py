"""Arrays joined along an axis, and cut into pieces."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from minigraph.arguments import Axis, Kind, Sections
from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import Array, Node, Shape, Spec, SymbolicSize, Tensor, builder
from minigraph.ops.elementwise import of_multiples, promote
from minigraph.ops.shape import Ints, expand_dims, normalize_axis, reshape
from minigraph.ops.slicing import Pad, Slice, Windowed, getitem
from minigraph.symbolic import UndecidedSize


class Concat(Windowed):
    """The inputs one after the other along `axis`."""

    axis: int

    def infer(self, *xs: Spec) -> Spec:
        a = self.axis
        for x in xs:
            rest = x.shape[:a] + x.shape[a + 1 :]
            if rest != xs[0].shape[:a] + xs[0].shape[a + 1 :]:
                shapes = f"{xs[0].shape} and {x.shape}"
                advice = of_multiples([xs[0].shape, x.shape])
                raise ShapeError(f"the shapes differ in another axis than {a}: {shapes}{advice}")
            if x.dtype != xs[0].dtype:
                raise DTypeError("the dtypes differ")
        size = sum(x.shape[a] for x in xs)
        return Spec((*xs[0].shape[:a], size, *xs[0].shape[a + 1 :]), xs[0].dtype)

    def offsets(self, xs: Sequence[Shape], y: Shape) -> Sequence[Ints]:
        before, after = (0,) * self.axis, (0,) * (len(y) - self.axis - 1)
        ends = itertools.accumulate((x[self.axis] for x in xs[:-1]), initial=0)
        return [(*before, begin, *after) for begin in ends]

    def forward(self, *xs: Array) -> Array:
        return np.concatenate(xs, self.axis)

    def grad(self, dy: Node, y: Node, *xs: Node) -> tuple[Node, ...]:
        ends = [*itertools.accumulate((x.shape[self.axis] for x in xs), initial=0)]
        return tuple(_part(dy, self.axis, *ends[i : i + 2]) for i in range(len(xs)))


def paddings(nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """Split nodes into those that are padded with zeros and the others."""
    padded = [x for x in nodes if isinstance(x.op, Pad) and not x.op.value]
    return padded, [x for x in nodes if not isinstance(x.op, Pad) or x.op.value]


def join(padded: Sequence[Node]) -> Node | None:
    """Return the sum of padded arrays as a concatenation; None if they overlap or leave gaps."""
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


def _parse_arrays(xs: Any) -> tuple[Node, ...]:
    if isinstance(xs, Node) and isinstance((*xs.shape, 0)[0], SymbolicSize):
        raise TypeError  # how many rows it has is not known
    nodes = promote(*xs)
    if not nodes:
        raise ValueError
    return nodes


# The rows of an array or an expression are a sequence, too.
JOINED = Kind("a sequence of one array or more", _parse_arrays)


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
def split(x: Tensor, sections_or_indices: Sections, axis: Axis = 0) -> list[Node]:
    """Return pieces of x along `axis`: so many equal ones, or cut before the given indices.

    >>> cg.compile([], ops.split([1, 2, 3, 4], 2))()
    [array([1, 2]), array([3, 4])]
    """
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
    before = (slice(None),) * axis
    pairs = zip([None, *cuts], [*cuts, None], strict=True)
    return [getitem(x, (*before, slice(a, b))) for a, b in pairs]


def _part(x: Node, axis: int, start: int, stop: int) -> Node:
    """Return x[start:stop] along `axis`."""
    low, high = [0] * x.ndim, [*x.shape]
    low[axis], high[axis] = start, stop
    return Slice(tuple(low), tuple(high), (1,) * x.ndim)(x)

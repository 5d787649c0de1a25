"""Pooling of images [n, c, h, w], with the conventions of `torch.nn.functional`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import (
    Array,
    DType,
    Node,
    Op,
    Shape,
    Spec,
    SymbolicSize,
    Tensor,
    UndecidedSize,
    builder,
    constant,
)
from minigraph.ops.comparison import where
from minigraph.ops.creation import arange
from minigraph.ops.elementwise import kind, sum_dtype, widen
from minigraph.ops.indexing import Take, TakeAlong
from minigraph.ops.padding import MAX_LISTED_ELEMENTS
from minigraph.ops.reduction import MAX_PLAIN_SUM, Sum
from minigraph.ops.shape import reshape
from minigraph.ops.window import Border, OutputSize, Pair, Pairs, Window, steps


@dataclass(frozen=True)
class Pooling:
    """The windows of a pooling: their size, their distance, and (before, after) padding of h, w."""

    window: Pair
    stride: Pair
    padding: Pairs

    def shape(self, x: Shape) -> Shape:
        sizes = zip(x[2:], self.window, self.stride, self.padding, strict=True)
        return (*x[:2], *(steps(*each) for each in sizes))

    def windows(self, x: Array, fill: float = 0) -> Array:
        """Return a view of padded x [n, c, h, w] as the windows' patches: [n, c, i, j, r, s]."""
        x = np.pad(x, ((0, 0), (0, 0), *self.padding), constant_values=fill)
        view = np.lib.stride_tricks.sliding_window_view(x, self.window, (2, 3))
        return view[:, :, :: self.stride[0], :: self.stride[1]]

    def flat_windows(self, x: Array, fill: float = 0) -> Array:
        """Return the elements of each window in a row: [n, c, i, j, r * s]."""
        patches = self.windows(x, fill)
        return patches.reshape(*patches.shape[:4], math.prod(self.window))

    def scatter(self, patches: Array, shape: Shape) -> Array:
        """Undo `windows`: add patches up to an image of `shape`, in a wider type."""
        out = np.pad(np.zeros(shape, sum_dtype(patches.dtype)), ((0, 0), (0, 0), *self.padding))
        for tap in np.ndindex(self.window):
            axes = zip(tap, patches.shape[2:4], self.stride, strict=True)
            rows, columns = (slice(start, start + (n - 1) * t + 1, t) for start, n, t in axes)
            out[:, :, rows, columns] += patches[:, :, :, :, *tap]
        (top, _), (left, _) = self.padding
        return out[:, :, top : top + shape[2], left : left + shape[3]]


class MaxPool2d(Op):
    """The largest element of each window, and its row-major position in the window.

    The position is uint8 for windows of at most 256 elements, else int32.  NaN counts as largest;
    of equal elements the first is taken.
    """

    pooling: Pooling

    def infer(self, x: Spec) -> tuple[Spec, Spec]:
        shape = self.pooling.shape(x.shape)
        if kind(x.dtype) == "b":
            raise DTypeError("max pooling takes numbers, not bool")
        return Spec(shape, x.dtype), Spec(shape, self.position_dtype)

    @property
    def position_dtype(self) -> DType:
        r, s = self.pooling.window
        return np.dtype(np.uint8 if r * s <= 256 else np.int32)

    def forward(self, x: Array) -> tuple[Array, Array]:
        lowest = -np.inf if kind(x.dtype) == "f" else np.iinfo(x.dtype).min
        flat = self.pooling.flat_windows(x, lowest)
        position = flat.argmax(-1, keepdims=True)
        # The position in a window of nothing but -inf must not be in the padding.
        is_inside = self.pooling.flat_windows(np.ones((1, 1, *x.shape[2:]), bool))
        is_padding = ~np.take_along_axis(np.broadcast_to(is_inside, flat.shape), position, -1)
        position = np.where(is_padding, is_inside.argmax(-1, keepdims=True), position)
        largest = np.take_along_axis(flat, position, -1)[..., 0]
        return largest, position[..., 0].astype(self.position_dtype)

    def grad(self, dys: tuple[Node, None], ys: tuple[Node, Node], x: Node) -> tuple[Node]:
        return (MaxPool2dBackward(self.pooling, x.shape)(dys[0], ys[1]),)


class MaxPool2dBackward(Op):
    """The gradient of max pooling for its input of `shape`: dy added at the largest elements."""

    pooling: Pooling
    shape: Shape

    def infer(self, dy: Spec, position: Spec) -> Spec:
        for operand in (dy, position):
            if operand.shape != self.pooling.shape(self.shape):
                raise ShapeError(f"{operand} does not fit the windows of {self.shape}")
        return Spec(self.shape, dy.dtype)

    def forward(self, dy: Array, position: Array) -> Array:
        r, s = self.pooling.window
        is_largest = np.arange(r * s) == position[..., None]
        patches = np.where(is_largest, dy[..., None], dy.dtype.type(0)).reshape(*dy.shape, r, s)
        return self.pooling.scatter(patches, self.shape).astype(dy.dtype)

    def grad(self, ddx: Node, dx: Node, dy: Node, position: Node) -> tuple[Node, None]:
        """Return the elements of ddx at the positions to which dy was added."""
        n, c, h, w = ddx.shape
        rows, columns = position.shape[2:]
        (down, across), ((top, _), (left, _)) = self.pooling.stride, self.pooling.padding
        tap, width = position.astype("int64"), self.pooling.window[1]
        row = tap // width + reshape(arange(rows) * down - top, (rows, 1))
        column = tap % width + (arange(columns) * across - left)
        flat = reshape(row * w + column, (n, c, rows * columns))
        return reshape(TakeAlong(2)(reshape(ddx, (n, c, h * w)), flat), position.shape), None


class AvgPool2d(Op):
    """The mean of each window.

    count_padding  whether the padding's zeros count; elements beyond the padding, as with
                   ceil_mode, never count
    """

    pooling: Pooling
    pad: Pair
    count_padding: bool

    def infer(self, x: Spec) -> Spec:
        return Spec(self.pooling.shape(x.shape), x.dtype)

    def counts(self, shape: Shape) -> Array:
        """Return the number of elements in each window, [i, j]."""
        counts = []
        p = self.pooling
        axes = zip(shape[2:], p.window, p.stride, p.padding, self.pad, strict=True)
        for size, window, stride, (before, after), pad in axes:
            counted = pad * self.count_padding
            start = np.arange(steps(size, window, stride, (before, after))) * stride - before
            stop = np.minimum(start + window, size + min(counted, after))
            counts.append(stop - np.maximum(start, -counted))
        return np.multiply.outer(*counts)

    def forward(self, x: Array) -> Array:
        total = self.pooling.windows(x).sum((4, 5), sum_dtype(x.dtype))
        return (total / self.counts(x.shape)).astype(x.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (AvgPool2dBackward(self, x.shape)(dy),)


class AvgPool2dBackward(Op):
    """The gradient of `pool` for its input of `shape`."""

    pool: AvgPool2d
    shape: Shape

    def infer(self, dy: Spec) -> Spec:
        dx = Spec(self.shape, dy.dtype)
        if self.pool.infer(dx) != dy:
            raise ShapeError(f"dy has shape {dy.shape} for images of {self.shape}")
        return dx

    def forward(self, dy: Array) -> Array:
        wide = widen(dy)
        share = wide / self.pool.counts(self.shape).astype(wide.dtype)
        window = self.pool.pooling.window
        patches = np.broadcast_to(share[..., None, None], (*share.shape, *window))
        return self.pool.pooling.scatter(patches, self.shape).astype(dy.dtype)

    def grad(self, ddx: Node, dx: Node, dy: Node) -> tuple[Node]:
        return (self.pool(ddx),)


def _pooling(x: Node, window: Pair, stride: Pair | None, pad: Pair, ceil_mode: bool) -> Pooling:
    """Return the windows of a pooling.

    With ceil_mode the padding after x grows so that a last, partial window fits; a window that
    would begin in that padding is dropped, as in PyTorch.
    """
    if x.ndim != 4:
        raise ShapeError(f"the input is (n, c, h, w), not {x.shape}")
    stride = stride or window
    if any(2 * p > k for p, k in zip(pad, window, strict=True)):
        raise ShapeError(f"padding {pad} is more than half of the window {window}")
    sides = []
    for n, k, t, p in zip(x.shape[2:], window, stride, pad, strict=True):
        after = p
        if ceil_mode:
            after += t - 1
            if k < p + t:  # else no window begins in the padding after x
                count = (n + p + after - k) // t + 1
                count -= (count - 1) * t >= n + p
                after = max((count - 1) * t + k - n - p, 0)
        sides.append((p, after))
    return Pooling(window, stride, (sides[0], sides[1]))


@builder
def max_pool2d(
    x: Tensor,
    kernel_size: Window,
    stride: Window | None = None,
    padding: Border = 0,
    ceil_mode: bool = False,
) -> Node:
    """Return the largest element of each window of images (n, c, h, w).

    Sizes are ints or (h, w) pairs; stride None is the kernel size.  ShapeError if no window fits.

    >>> ops.max_pool2d(mg.input("x", (8, 16, 32, 32)), 3, stride=2, padding=1).shape
    (8, 16, 16, 16)
    """
    return MaxPool2d(_pooling(x, kernel_size, stride, padding, ceil_mode)).results(x)[0]


@builder
def avg_pool2d(
    x: Tensor,
    kernel_size: Window,
    stride: Window | None = None,
    padding: Border = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Node:
    """Return the mean of each window of images (n, c, h, w), which are floats.

    Sizes are ints or (h, w) pairs; stride None is the kernel size.  ShapeError if no window fits.

    >>> ops.avg_pool2d(mg.input("x", (8, 16, 32, 32)), 2).shape
    (8, 16, 16, 16)
    """
    x = _check_float(x)
    pooling = _pooling(x, kernel_size, stride, padding, ceil_mode)
    counted = count_include_pad and any(padding)
    window, (down, across), (vertical, horizontal) = pooling.window, pooling.stride, pooling.padding
    are_tiles = pooling.stride == window and not any(map(any, pooling.padding))
    if math.prod(window) <= MAX_PLAIN_SUM or 1 in window or are_tiles:
        return AvgPool2d(pooling, padding, counted)(x)
    # Means over rows, then over columns: a mean is of few numbers, and a number is in few means.
    rows = Pooling((window[0], 1), (down, 1), (vertical, (0, 0)))
    columns = Pooling((1, window[1]), (1, across), ((0, 0), horizontal))
    means = AvgPool2d(rows, (padding[0], 0), counted)(widen(x))
    return AvgPool2d(columns, (0, padding[1]), counted)(means).astype(x.dtype)


@builder
def adaptive_avg_pool2d(x: Tensor, output_size: OutputSize) -> Node:
    """Return an image of `output_size`, each pixel the mean of the part of x that it covers.

    output_size  an int or a pair; None keeps the input's size

    Pixel i covers rows floor(i * h / out) to ceil((i + 1) * h / out), as in PyTorch.

    >>> ops.adaptive_avg_pool2d(mg.input("x", (8, 16, 32, 32)), 1).shape
    (8, 16, 1, 1)
    """
    (rows, columns), pooling = _adaptive(_check_float(x), output_size)
    if (rows, columns) == x.shape[2:]:
        return x
    if pooling:
        return AvgPool2d(pooling, (0, 0), False)(x)
    means = _means_of_parts(_means_of_parts(widen(x), 2, rows), 3, columns)
    return means.astype(x.dtype)


@builder
def adaptive_max_pool2d(x: Tensor, output_size: OutputSize) -> Node:
    """Return an image of `output_size`, each pixel the largest of the part of x that it covers.

    output_size  an int or a pair; None keeps the input's size

    Pixel i covers rows floor(i * h / out) to ceil((i + 1) * h / out), as in PyTorch.

    >>> ops.adaptive_max_pool2d(mg.input("x", (8, 16, 32, 32)), (2, 4)).shape
    (8, 16, 2, 4)
    """
    output_size, pooling = _adaptive(x, output_size)
    if output_size == x.shape[2:]:
        return x
    if not pooling:  # take the parts one after the other, in one length
        window = []
        for axis, out in ((2, output_size[0]), (3, output_size[1])):
            indices = _parts(x.shape[axis], out)
            window.append(indices.shape[1])
            x = Take(axis)(x, constant(indices.reshape(-1)))
        size = (window[0], window[1])
        pooling = Pooling(size, size, NO_BORDER)
    return MaxPool2d(pooling).results(x)[0]


NO_BORDER: Pairs = ((0, 0), (0, 0))


def _adaptive(x: Node, output_size: Any) -> tuple[Pair, Pooling | None]:
    """Return the size of the result, and the pooling by equal parts; None if parts differ."""
    if x.ndim != 4:
        raise ShapeError(f"the input is (n, c, h, w), not {x.shape}")
    h, w = x.shape[2:]
    if not h or not w:
        raise ShapeError(f"an image of shape {x.shape} has no pixels")
    sides = output_size if isinstance(output_size, tuple) else (output_size, output_size)
    rows, columns = (n if m is None else m for m, n in zip(sides, (h, w), strict=True))
    window = (h // rows, w // columns)
    equal = None if h % rows or w % columns else Pooling(window, window, NO_BORDER)
    return (rows, columns), equal


def _parts(size: int, out: int) -> Array:
    """Return the indices of the rows of each part, [out, length]; shorter parts repeat the last."""
    if out > MAX_LISTED_ELEMENTS:
        raise ShapeError(f"output_size is {out}; it takes up to {MAX_LISTED_ELEMENTS}")
    if isinstance(size, SymbolicSize):
        raise UndecidedSize(
            f"how {size} pixels make {out} parts is known only when the function is called; give "
            f"an output_size of 1, the image's size in numbers, or as a multiple, '{out}*h'"
        )
    i = np.arange(out)[:, None]
    begin, end = i * size // out, -((i + 1) * -size // out)
    return np.minimum(begin + np.arange((end - begin).max()), end - 1)


def _means_of_parts(x: Node, axis: int, out: int) -> Node:
    """Return the means of `out` parts of x along an axis.

    A product with a matrix of shares would make NaN of 0 times an infinity.
    """
    indices = _parts(x.shape[axis], out)
    is_new = np.diff(indices, prepend=-1) > 0  # not a repeated row
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    ones = (1,) * len(after)
    parts = reshape(Take(axis)(x, constant(indices.reshape(-1))), (*before, *indices.shape, *after))
    total = Sum((axis + 1,))(where(is_new.reshape(*indices.shape, *ones), parts, 0))
    counts = constant(is_new.sum(1).reshape(out, *ones), x.dtype)
    return reshape(total, (*before, out, *after)) / counts


def _check_float(x: Node) -> Node:
    if kind(x.dtype) != "f":
        raise DTypeError(f"a mean of {x.dtype.name}; convert to a float dtype first")
    return x

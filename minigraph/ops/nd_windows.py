"""Pools and convolutions of ONNX and PyTorch along any number of axes, made of other ops."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from minigraph import ops
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import FLOATS, Node
from minigraph.ops.slicing import Pad

MAX_WINDOW_ELEMENTS = 4096  # each element of a window is a slice


class Windows(NamedTuple):
    """Windows over the last axes of an array, with a value of each field for each axis.

    Pools that have no op, such as 3-d, dilated or asymmetrically padded ones, are made of slices.

    padding  (before, after) of each axis
    ceil     whether a last window that begins inside the padding may reach beyond it
    """

    size: list[int]
    stride: list[int]
    padding: list[tuple[int, int]]
    dilation: list[int]
    ceil: bool = False

    def along(self, axes: slice) -> Windows:
        """Return the windows along some of the axes."""
        parts = self.size[axes], self.stride[axes], self.padding[axes], self.dilation[axes]
        return Windows(*parts, self.ceil)

    def taps(self, x: Node, fill: float = 0) -> Node:
        """Return the elements of each window, tap by tap along a new first axis."""
        rank = len(self.size)
        if math.prod(self.size) > MAX_WINDOW_ELEMENTS:
            raise ShapeError(
                f"a window of {[*self.size]} has more than {MAX_WINDOW_ELEMENTS} elements"
            )
        starts, widths = [], [(0, 0)] * (x.ndim - rank)
        axes = zip(*self[:4], x.shape[x.ndim - rank :], strict=True)
        for k, s, (before, after), d, n in axes:
            span = d * (k - 1) + 1
            room = n + before + after - span
            count = (-(-room // s) if self.ceil else room // s) + 1
            if self.ceil and (count - 1) * s >= n + before:
                count -= 1  # the last window would begin in the padding
            reach = (count - 1) * s + span
            widths.append((before, max(reach - n - before, 0)))
            starts.append([slice(i * d, i * d + (count - 1) * s + 1, s) for i in range(k)])
        x = ops.pad(x, widths, fill) if any(a or b for a, b in widths) else x
        return ops.stack([x[(..., *tap)] for tap in itertools.product(*starts)])

    def reduced(self, x: Node, reduce: Callable[[Node, int], Node], fill: float) -> Node:
        """Return `reduce` of the elements of each window, axis by axis from the last."""
        rank = len(self.size)
        for i, (k, s, border, d) in reversed([*enumerate(zip(*self[:4], strict=True))]):
            size, stride, padding, dilation = [1] * rank, [1] * rank, [(0, 0)] * rank, [1] * rank
            size[i], stride[i], padding[i], dilation[i] = k, s, border, d
            x = reduce(Windows(size, stride, padding, dilation, self.ceil).taps(x, fill), 0)
        return x

    def flat(self) -> Windows:
        """Return windows along one axis as those of images with one row."""
        parts = [1, *self.size], [1, *self.stride], [(0, 0), *self.padding], [1, *self.dilation]
        return Windows(*parts, self.ceil)

    def _pool_images(self, x: Node, pool: Callable[..., Node], *options: bool) -> Node | None:
        """Return the result of a 2-d op, or None if the op does not support these windows."""
        even = all(a == b and 2 * a <= k for (a, b), k in zip(self.padding, self.size, strict=True))
        if len(self.size) != 2 or not even or {*self.dilation} != {1} or x.dtype not in FLOATS:
            return None
        images = x if x.ndim == 4 else ops.expand_dims(x, 0)
        parts = self.size, self.stride, [a for a, _ in self.padding]
        y = pool(images, *map(tuple, parts), self.ceil, *options)
        return y if x.ndim == 4 else ops.squeeze(y, 0)

    def maximum(self, x: Node) -> Node:
        """Return the largest element of each window; the first of equals gets the gradient."""
        y = self._pool_images(x, ops.max_pool2d)
        return self.reduced(x, _first_largest, _lowest(x)) if y is None else y

    def place_of_maximum(self, x: Node) -> Node:
        """Return the row-major index in the image of the largest element of each window."""
        rank = len(self.size)
        shape = x.shape[x.ndim - rank :]
        indices = self.taps(ops.reshape(ops.arange(math.prod(shape), dtype="int64"), shape))
        values = self.taps(x, _lowest(x))
        shape = (indices.shape[0], *(1,) * (x.ndim - rank), *indices.shape[1:])
        indices = ops.broadcast_to(ops.reshape(indices, shape), values.shape)
        return ops.take_along_axis(indices, ops.argmax(values, 0, True), 0)[0]

    def mean(self, x: Node, counts_padding: bool) -> Node:
        """Return the mean of each window, with the padding's zeros if they count.

        Elements beyond the padding, which `ceil` adds, never count.
        """
        if (y := self._pool_images(x, ops.avg_pool2d, counts_padding)) is not None:
            return y
        total = self.reduced(x, ops.sum, 0)
        rank = len(self.size)
        shape, borders = x.shape[x.ndim - rank :], [(0, 0)] * rank
        if counts_padding:
            inside = tuple(n + sum(pair) for n, pair in zip(shape, self.padding, strict=True))
            count = self._replace(padding=borders).reduced(ops.ones(inside), ops.sum, 0)
            count = count[tuple(slice(n) for n in total.shape[total.ndim - rank :])]
        else:
            count = self.reduced(ops.ones(shape), ops.sum, 0)
        return total / ops.astype(count, x.dtype)

    def convolution(self, x: Node, w: Node, bias: Node | None, groups: int) -> Node:
        """Return the convolution of images with one to three axes."""
        rank = len(self.size)
        if rank == 1:
            x, w = ops.expand_dims(x, 2), ops.expand_dims(w, 2)
            return ops.squeeze(self.flat().convolution(x, w, bias, groups), 2)
        if rank == 2:
            padding = tuple(a for a, _ in self.padding)
            if any(a != b or a < 0 for a, b in self.padding):
                x, padding = ops.pad(x, [(0, 0), (0, 0), *self.padding]), (0, 0)
            return ops.conv2d(x, w, bias, tuple(self.stride), padding, tuple(self.dilation), groups)
        if rank != 3:
            raise GraphError(f"a convolution of images with {rank} axes")
        # Taps along the first axis become channels, and that axis becomes examples.
        taps = self.along(slice(0, 1)).taps(ops.moveaxis(x, 2, -1))  # k n c h w d
        taps = ops.permute_dims(taps, (1, 5, 2, 0, 3, 4))
        n, d, c, k, height, width = taps.shape
        images = ops.reshape(taps, (n * d, c * k, height, width))
        weights = ops.reshape(w, (w.shape[0], -1, *w.shape[3:]))
        y = self.along(slice(1, 3)).convolution(images, weights, bias, groups)
        return ops.moveaxis(ops.reshape(y, (n, d, *y.shape[1:])), 1, 2)

    def transposed_convolution(
        self, x: Node, w: Node, bias: Node | None, extra: Sequence[int], groups: int
    ) -> Node:
        """Return the transposed convolution of images with one to three axes.

        extra  number of elements by which the result is longer along each axis
        """
        rank = len(self.size)
        if rank == 1:
            x, w = ops.expand_dims(x, 2), ops.expand_dims(w, 2)
            y = self.flat().transposed_convolution(x, w, bias, [0, *extra], groups)
            return ops.squeeze(y, 2)
        if rank == 3:
            return _biased(self._transposed_convolution_of_volumes(x, w, extra, groups), bias)
        if rank != 2:
            raise GraphError(f"a transposed convolution of images with {rank} axes")
        borders, (stride, dilation) = self.padding, (tuple(self.stride), tuple(self.dilation))
        before = tuple(a for a, _ in borders)
        if all(a == b >= 0 and e < s for (a, b), e, s in zip(borders, extra, stride, strict=True)):
            padding = before, tuple(extra)
            return ops.conv_transpose2d(x, w, bias, stride, *padding, groups, dilation)
        # Cut the borders off; elements that no window reads are 0.
        y = ops.conv_transpose2d(x, w, None, stride, 0, 0, groups, dilation)
        sizes = [e + n - a - b for e, n, (a, b) in zip(extra, y.shape[2:], borders, strict=True)]
        widths = [(max(-a, 0), max(e - b, 0)) for e, (a, b) in zip(extra, borders, strict=True)]
        starts = [max(a, 0) for a in before]
        y = ops.pad(y, [(0, 0), (0, 0), *widths])
        y = y[(..., *(slice(a, a + n) for a, n in zip(starts, sizes, strict=True)))]
        return _biased(y, bias)

    def _transposed_convolution_of_volumes(
        self, x: Node, w: Node, extra: Sequence[int], groups: int
    ) -> Node:
        # Taps along the first axis are channels of images, which are added up at their places.
        k, s, d = self.size[0], self.stride[0], self.dilation[0]
        start, end = self.padding[0][0], extra[0] - self.padding[0][1]
        n, c, depth = x.shape[:3]
        images = ops.reshape(ops.moveaxis(x, 2, 1), (n * depth, c, *x.shape[3:]))
        weights = ops.reshape(w, (c, -1, *w.shape[3:]))
        y = self.along(slice(1, 3)).transposed_convolution(images, weights, None, extra[1:], groups)
        y = ops.reshape(y, (n, depth, w.shape[1] * groups, k, *y.shape[2:]))
        taps = ops.unstack(ops.moveaxis(y, 1, 3), 2)  # each is n c depth h w
        none, between = (0, 0), (0, 0, s - 1, 0, 0)
        front, back = max(-start, 0), max(end, 0)
        spread = [
            Pad((*none, i * d + front, *none), (*none, (k - 1 - i) * d + back, *none), between)(tap)
            for i, tap in enumerate(taps)
        ]
        total = functools.reduce(ops.add, spread)
        return total[:, :, max(start, 0) : total.shape[2] + min(end, 0)]


def _biased(y: Node, bias: Node | None) -> Node:
    return y if bias is None else y + ops.reshape(bias, (-1, *(1,) * (y.ndim - 2)))


def _first_largest(taps: Node, axis: int) -> Node:
    """Return the largest elements along an axis, or NaN; the first of equals gets the gradient."""
    if taps.dtype not in FLOATS:
        return ops.max(taps, axis)
    largest, *others = ops.unstack(taps, axis)
    for y in others:
        largest = ops.where((y > largest) | ops.isnan(y), y, largest)
    return largest


def _lowest(x: Node) -> float:
    return -math.inf if x.dtype in FLOATS else int(np.iinfo(x.dtype).min)

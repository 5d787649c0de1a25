"""Windows of any rank over the last axes of an array, made of slices.

They do what no op does: pool along one or three axes, with a dilation, or with different borders.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from minigraph import ops
from minigraph.errors import ShapeError
from minigraph.graph import FLOATS, Node

MOST = 4096  # places in a window: each is a slice


class Windows(NamedTuple):
    """Windows over the last axes of an array: for each axis a number, of `padding` two.

    padding  before and after
    ceil     whether a last window may reach beyond the padding; it begins before that
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
        """Return what each window reads at each of its places, along a new first axis."""
        rank = len(self.size)
        if math.prod(self.size) > MOST:
            raise ShapeError(f"a window of {[*self.size]} has more than {MOST} places")
        starts, widths = [], [(0, 0)] * (x.ndim - rank)
        axes = zip(*self[:4], x.shape[x.ndim - rank :], strict=True)
        for k, s, (before, after), d, n in axes:
            span = d * (k - 1) + 1
            room = n + before + after - span
            count = (-(-room // s) if self.ceil else room // s) + 1
            if self.ceil and (count - 1) * s >= n + before:  # it would lie in the padding
                count -= 1
            reach = (count - 1) * s + span
            widths.append((before, max(reach - n - before, 0)))
            starts.append([slice(i * d, i * d + (count - 1) * s + 1, s) for i in range(k)])
        x = ops.pad(x, widths, fill) if any(a or b for a, b in widths) else x
        return ops.stack([x[(..., *places)] for places in itertools.product(*starts)])

    def reduced(self, x: Node, reduce: Callable[[Node, int], Node], fill: float) -> Node:
        """Return what `reduce` makes of all that each window reads: of one axis, then the next."""
        rank = len(self.size)
        for i, (k, s, border, d) in enumerate(zip(*self[:4], strict=True)):
            ones, none = [1] * rank, [(0, 0)] * rank
            only = Windows([*ones], [*ones], none, [*ones], self.ceil)
            only.size[i], only.stride[i], only.padding[i], only.dilation[i] = k, s, border, d
            x = reduce(only.taps(x, fill), 0)
        return x

    def maximum(self, x: Node) -> Node:
        """Return the largest element of each window."""
        return self.reduced(x, ops.max, _lowest(x))

    def place_of_maximum(self, x: Node) -> Node:
        """Return where in the image, counted by rows, the largest element of each window is."""
        rank = len(self.size)
        shape = x.shape[x.ndim - rank :]
        places = self.taps(ops.reshape(ops.arange(math.prod(shape), dtype="int64"), shape))
        values = self.taps(x, _lowest(x))
        shape = (places.shape[0], *(1,) * (x.ndim - rank), *places.shape[1:])
        places = ops.broadcast_to(ops.reshape(places, shape), values.shape)
        return ops.take_along_axis(places, ops.argmax(values, 0, True), 0)[0]

    def mean(self, x: Node, counts_padding: bool) -> Node:
        """Return the mean of each window, of the padding's zeros too if they count.

        What `ceil` adds beyond the padding never counts.
        """
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


def _lowest(x: Node) -> float:
    return -math.inf if x.dtype in FLOATS else int(np.iinfo(x.dtype).min)

"""2-d convolution (cross-correlation, as in `torch.nn.functional.conv2d`) and its two gradients.

The gradients are ops of their own: each has its own best algorithm, so each is tuned for itself.
Images are [n, c, h, w], weights [k, c / groups, r, s].

Each is a sum of matrix products, one for each place in the window: so it needs little memory, and
takes whichever arrays follow NumPy's protocols.  Sums of 16-bit floats are taken in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import Array, DType, Node, Op, Shape, Spec, as_node
from minigraph.ops.builder import builder
from minigraph.ops.elementwise import kind, promote
from minigraph.ops.window import Pair, Pairs, as_pair, inside, steps, taps


class Conv2d(Op):
    """Sum over the window and the channels of a group of x times w, plus bias [k] if given."""

    rounds_zeros = True  # by Winograd's algorithm

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def infer(self, x: Spec, w: Spec, bias: Spec | None = None) -> Spec:
        if len(x.shape) != 4 or len(w.shape) != 4:
            raise ShapeError("the input is (n, c, h, w) and the weights are (out, in, h, w)")
        n, c, height, width = x.shape
        k, wc, r, s = w.shape
        if c != wc * self.groups or k % self.groups:
            raise ShapeError(
                f"the input has {c} channels; weights of shape {w.shape} in {self.groups} "
                f"groups take {wc * self.groups}"
            )
        if bias is not None and bias.shape != (k,):
            raise ShapeError(f"the bias has shape {bias.shape}; {k} output channels take ({k},)")
        if len({v.dtype for v in (x, w, bias) if v is not None}) > 1 or kind(x.dtype) != "f":
            raise DTypeError("input, weights and bias have one float dtype")
        sizes = zip((height, width), (r, s), self.stride, self._sides, self.dilation, strict=True)
        return Spec((n, k, *(steps(*each) for each in sizes)), x.dtype)

    @property
    def _sides(self) -> Pairs:
        return (self.padding[0], self.padding[0]), (self.padding[1], self.padding[1])

    def forward(self, x: Array, w: Array, bias: Array | None = None) -> Array:
        y = _zeros(x, self.infer(Spec(x.shape, x.dtype), Spec(w.shape, x.dtype)).shape)
        total, weights = self.by_group(y), self.by_place(w)
        for r, s, pixels in self.taps(self.padded(x), w.shape, y.shape):
            total += weights[r, s] @ self.by_group(pixels)
        if bias is not None:
            y += bias[:, None, None]
        return y.astype(x.dtype, copy=False)

    def padded(self, x: Array) -> Array:
        """Images with the zeros around them, in the dtype that sums are taken in."""
        return np.pad(x.astype(_wide(x), copy=False), ((0, 0), (0, 0), *self._sides))

    def taps(self, padded: Array, w: Shape, y: Shape) -> Iterator[tuple[int, int, Array]]:
        """Yield each place in the window, and the pixels that the weights there meet, as a view."""
        return taps(padded, w[2:], y[2:], self.stride, self.dilation)  # type: ignore[arg-type]

    def by_group(self, x: Array) -> Array:
        """Images as matrices [n, groups, channels, pixels]."""
        n, c, height, width = x.shape
        return x.reshape(n, self.groups, c // self.groups, height * width)

    def by_place(self, w: Array) -> Array:
        """Weights as matrices [r, s, groups, out, in], in the dtype that sums are taken in."""
        k, c, r, s = w.shape
        matrices = np.moveaxis(w.reshape(self.groups, k // self.groups, c, r, s), (3, 4), (0, 1))
        return matrices.astype(_wide(w), order="C")

    def grad(self, dy: Node, y: Node, x: Node, w: Node, *bias: Node) -> tuple[Node, ...]:
        dx = Conv2dBackwardData(self, x.shape)(dy, w)
        dw = Conv2dBackwardWeights(self, w.shape)(dy, x)
        return dx, dw, *(dy.sum((0, 2, 3)) for _ in bias)


class Conv2dBackwardData(Op):
    """The gradient of `conv` for its input, which has `shape`, from dy and w."""

    rounds_zeros = True  # by Winograd's algorithm

    conv: Conv2d
    shape: Shape

    def infer(self, dy: Spec, w: Spec) -> Spec:
        return Spec(self.shape, dy.dtype)

    def forward(self, dy: Array, w: Array) -> Array:
        conv = self.conv
        padded = conv.padded(_zeros(dy, self.shape))
        weights = conv.by_place(w).swapaxes(3, 4)
        gradient = conv.by_group(dy.astype(_wide(dy), copy=False))
        for r, s, pixels in conv.taps(padded, w.shape, dy.shape):
            pixels += (weights[r, s] @ gradient).reshape(pixels.shape)
        return inside(padded, self.shape, conv._sides).astype(dy.dtype, copy=False)

    def grad(self, ddx: Node, dx: Node, dy: Node, w: Node) -> tuple[Node, Node]:
        return self.conv(ddx, w), Conv2dBackwardWeights(self.conv, w.shape)(dy, ddx)


class Conv2dBackwardWeights(Op):
    """The gradient of `conv` for its weights, which have `shape`, from dy and x."""

    rounds_zeros = True  # by Winograd's algorithm

    conv: Conv2d
    shape: Shape

    def infer(self, dy: Spec, x: Spec) -> Spec:
        return Spec(self.shape, dy.dtype)

    def forward(self, dy: Array, x: Array) -> Array:
        conv = self.conv
        dw = _zeros(dy, self.shape)
        places = dw.reshape(conv.groups, -1, *self.shape[1:])
        gradient = self._rows(dy.astype(_wide(dy), copy=False))
        for r, s, pixels in conv.taps(conv.padded(x), self.shape, dy.shape):
            places[..., r, s] = gradient @ self._rows(pixels).swapaxes(1, 2)
        return dw.astype(dy.dtype, copy=False)

    def _rows(self, x: Array) -> Array:
        """Images as matrices [groups, channels, pixels of all images]."""
        matrices = np.moveaxis(self.conv.by_group(x), 0, 2)
        return matrices.reshape(*matrices.shape[:2], -1)

    def grad(self, ddw: Node, dw: Node, dy: Node, x: Node) -> tuple[Node, Node]:
        return self.conv(x, ddw), Conv2dBackwardData(self.conv, x.shape)(dy, ddw)


def _wide(x: Array) -> DType:
    """The dtype in which sums are taken: at least float32."""
    return np.promote_types(x.dtype, np.float32)


def _zeros(like: Array, shape: Shape) -> Array:
    return np.zeros_like(like, _wide(like), shape=shape)


@builder
def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """Return the convolution of images x (n, c, h, w) with weights w (out, c / groups, h, w).

    bias (out,); stride, padding (zeros on both sides) and dilation are ints or (h, w) pairs.
    ShapeError if channels, groups or the window do not fit, DTypeError for integers.
    """
    if not isinstance(groups, int | np.integer) or groups < 1:
        raise ShapeError(f"groups is an int >= 1, not {groups!r}")
    op = Conv2d(
        as_pair("stride", stride, 1),
        as_pair("padding", padding, 0),
        as_pair("dilation", dilation, 1),
        int(groups),
    )
    operands = promote(*map(as_node, (x, w) if bias is None else (x, w, bias)))
    return op(*operands)

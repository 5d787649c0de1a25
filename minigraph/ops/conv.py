"""2-d convolution (cross-correlation, as in `torch.nn.functional.conv2d`) and its two gradients.

The gradients are separate ops, because each is tuned separately.  Images are [n, c, h, w], weights
[k, c / groups, r, s].

In NumPy each op is a sum of matrix products, one for each tap of the window, so it needs little
memory and works on any arrays that follow NumPy's protocols.  Sums of 16-bit floats are in float32.

Padding is skipped, not multiplied, so zeros of the padding and NaN in weights make no NaN.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from minigraph.arguments import Count
from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import Array, Node, Op, Shape, Spec, Tensor, builder
from minigraph.ops.elementwise import kind, promote, widen
from minigraph.ops.padding import pad
from minigraph.ops.shape import reshape
from minigraph.ops.window import Border, ConvBorder, Pair, Window, around_conv, steps
from minigraph.symbolic import assuming_large


class Conv2d(Op):
    """Sum over the window and the channels of a group of x times w, plus bias [k] if given."""

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
        if not (r and s):
            raise ShapeError(f"weights of shape {w.shape} have a window without pixels")
        if bias is not None and bias.shape != (k,):
            raise ShapeError(f"the bias has shape {bias.shape}; {k} output channels take ({k},)")
        if len({v.dtype for v in (x, w, bias) if v is not None}) > 1 or kind(x.dtype) != "f":
            raise DTypeError("input, weights and bias have one float dtype")
        sides = ((p, p) for p in self.padding)
        sizes = zip((height, width), (r, s), self.stride, sides, self.dilation, strict=True)
        return Spec((n, k, *(steps(*each) for each in sizes)), x.dtype)

    def forward(self, x: Array, w: Array, bias: Array | None = None) -> Array:
        weights, wide = self.by_tap(w), widen(x)
        result = self.infer(Spec(x.shape, x.dtype), Spec(w.shape, x.dtype))
        y = np.zeros_like(wide, shape=result.shape)
        for r, s, pixels, results in self.taps(wide, w.shape, y):
            results += (weights[r, s] @ self.by_group(pixels)).reshape(results.shape)
        if bias is not None:
            y += bias[:, None, None]
        return y.astype(x.dtype, copy=False)

    def taps(self, x: Array, w: Shape, y: Array) -> Iterator[tuple[int, int, Array, Array]]:
        """Yield each tap of the window: its row, its column, and the pixels of x and y it joins.

        The pixels are views, without those of y for which the tap meets padding.
        """
        for tap in itertools.product(*map(range, w[2:])):
            axes = zip(
                *(tap, x.shape[2:], y.shape[2:], self.stride, self.padding, self.dilation),
                strict=True,
            )
            x_slices, y_slices = zip(*(_overlap(*axis) for axis in axes), strict=True)
            yield *tap, x[:, :, *x_slices], y[:, :, *y_slices]

    def by_group(self, x: Array) -> Array:
        """Return images as matrices [n, groups, channels, pixels]."""
        n, c, height, width = x.shape
        return x.reshape(n, self.groups, c // self.groups, height * width)

    def by_tap(self, w: Array) -> Array:
        """Return weights as matrices [r, s, groups, out, in], in at least float32."""
        k, c, r, s = w.shape
        matrices = np.moveaxis(w.reshape(self.groups, k // self.groups, c, r, s), (3, 4), (0, 1))
        contiguous: Array = widen(matrices).copy()
        return contiguous

    def grad(self, dy: Node, y: Node, x: Node, w: Node, *bias: Node) -> tuple[Node, ...]:
        dx = Conv2dBackwardData(self, x.shape)(dy, w)
        dw = Conv2dBackwardWeights(self, w.shape)(dy, x)
        return dx, dw, *(dy.sum((0, 2, 3)) for _ in bias)


class Conv2dBackwardData(Op):
    """The gradient of `conv` for its input, which has `shape`, from dy and w."""

    conv: Conv2d
    shape: Shape

    def infer(self, dy: Spec, w: Spec) -> Spec:
        if any(n < 0 for n in self.shape):
            raise ShapeError(f"the result would have {self.shape[2:]} pixels")
        dx = Spec(self.shape, dy.dtype)
        if self.conv.infer(dx, Spec(w.shape, dy.dtype)) != dy:
            raise ShapeError(f"the convolution of images {self.shape} does not give {dy.shape}")
        return dx

    def forward(self, dy: Array, w: Array) -> Array:
        conv = self.conv
        weights, wide = conv.by_tap(w).swapaxes(3, 4), widen(dy)
        dx = np.zeros_like(wide, shape=self.shape)
        for r, s, pixels, gradient in conv.taps(dx, w.shape, wide):
            pixels += (weights[r, s] @ conv.by_group(gradient)).reshape(pixels.shape)
        return dx.astype(dy.dtype, copy=False)

    def grad(self, ddx: Node, dx: Node, dy: Node, w: Node) -> tuple[Node, Node]:
        return self.conv(ddx, w), Conv2dBackwardWeights(self.conv, w.shape)(dy, ddx)


class Conv2dBackwardWeights(Op):
    """The gradient of `conv` for its weights, which have `shape`, from dy and x."""

    conv: Conv2d
    shape: Shape

    def infer(self, dy: Spec, x: Spec) -> Spec:
        dw = Spec(self.shape, dy.dtype)
        if self.conv.infer(x, dw) != dy:
            raise ShapeError(f"the convolution of images {x.shape} does not give {dy.shape}")
        return dw

    def forward(self, dy: Array, x: Array) -> Array:
        conv = self.conv
        wide = widen(dy)
        dw = np.zeros_like(wide, shape=self.shape)
        groups = dw.reshape(conv.groups, self.shape[0] // conv.groups, *self.shape[1:])
        for r, s, pixels, gradient in conv.taps(widen(x), self.shape, wide):
            groups[..., r, s] = self._rows(gradient) @ self._rows(pixels).swapaxes(1, 2)
        return dw.astype(dy.dtype, copy=False)

    def _rows(self, x: Array) -> Array:
        """Return images as matrices [groups, channels, pixels of all images]."""
        matrices = np.moveaxis(self.conv.by_group(x), 0, 2)
        return matrices.reshape(*matrices.shape[:2], math.prod(matrices.shape[2:]))

    def grad(self, ddw: Node, dw: Node, dy: Node, x: Node) -> tuple[Node, Node]:
        return self.conv(x, ddw), Conv2dBackwardData(self.conv, x.shape)(dy, ddw)


def _overlap(
    tap: int, pixels: int, results: int, stride: int, padding: int, dilation: int
) -> tuple[slice, slice]:
    """Return the pixels along an axis that a tap reads, and the results that it adds to."""
    before = padding - tap * dilation  # result i reads pixel i * stride - before
    begin = min(max(-(-before // stride), 0), results)
    end = max(min((pixels - 1 + before) // stride + 1, results), begin)
    first = begin * stride - before
    return slice(first, first + (end - begin) * stride, stride), slice(begin, end)


@builder
def conv2d(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    stride: Window = 1,
    padding: ConvBorder = 0,
    dilation: Window = 1,
    groups: Count = 1,
) -> Node:
    """Return the convolution of images x (n, c, h, w) with weights w (out, c / groups, h, w).

    bias (out,); stride, padding (zeros on both sides) and dilation are ints or (h, w) pairs.
    padding "same" is as many zeros as keep the size, which takes a stride of 1; "valid" is none.
    ShapeError if channels, groups or the window do not fit, DTypeError for integers.

    >>> images, weights = mg.input("x", (8, 3, 32, 32)), mg.input("w", (16, 3, 3, 3))
    >>> ops.conv2d(images, weights, stride=2, padding=1).shape
    (8, 16, 16, 16)
    """
    x, w, *biases = promote(x, w) if bias is None else promote(x, w, bias)
    window = w.shape[2:] if w.ndim == 4 else (1, 1)  # the op raises the error
    (top, bottom), (left, right) = around_conv(padding, window, stride, dilation)
    if x.ndim == 4 and (bottom > top or right > left):
        x = pad(x, ((0, 0), (0, 0), (0, bottom - top), (0, right - left)))
    return Conv2d(stride, (top, left), dilation, groups)(x, w, *biases)


@builder
def conv_transpose2d(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    stride: Window = 1,
    padding: Border = 0,
    output_padding: Border = 0,
    groups: Count = 1,
    dilation: Window = 1,
) -> Node:
    """Return the gradient for a convolution's input, given the gradient x (n, in, h, w).

    w (in, out / groups, h, w), bias (out,).  An axis of n pixels becomes one of (n - 1) * stride
    - 2 * padding + dilation * (window - 1) + output_padding + 1.  ShapeError if channels, groups or
    output_padding, which is less than the stride, do not fit; DTypeError for integers.

    >>> images, weights = mg.input("x", (8, 16, 16, 16)), mg.input("w", (16, 3, 2, 2))
    >>> ops.conv_transpose2d(images, weights, stride=2).shape
    (8, 3, 32, 32)
    """
    x, w, *biases = promote(x, w) if bias is None else promote(x, w, bias)
    if x.ndim != 4 or w.ndim != 4:
        raise ShapeError("the input is (n, c, h, w) and the weights are (in, out, h, w)")
    axes = zip(x.shape[2:], stride, padding, dilation, w.shape[2:], output_padding, strict=True)
    sizes = [(n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, s, p, d, k, o in axes]
    conv = Conv2d(stride, padding, dilation, groups)
    with assuming_large():
        if any(n < 1 for n in sizes):
            raise ShapeError(f"the result would have {sizes} pixels")
        result = Spec((x.shape[0], w.shape[1] * groups, *sizes), x.dtype)
        fits = conv.infer(result, Spec(w.shape, w.dtype)) == x.spec
    if not fits:
        raise ShapeError(
            f"x of shape {x.shape} does not fit weights {w.shape}, or output_padding "
            f"{output_padding} is not less than the stride {stride}"
        )
    y = Conv2dBackwardData(conv, result.shape)(x, w)
    for b in biases:
        if b.shape != result.shape[1:2]:
            raise ShapeError(f"the bias has shape {b.shape}, not {result.shape[1:2]}")
        y = y + reshape(b, (1, b.size, 1, 1))
    return y

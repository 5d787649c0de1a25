"""2-d convolution (cross-correlation, as in `torch.nn.functional.conv2d`) and its two gradients.

The gradients are ops of their own: each has its own best algorithm, so each is tuned for itself.
Images are [n, c, h, w], weights [k, c / groups, r, s].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import Array, Node, Op, Shape, Spec, as_node
from minigraph.ops.builder import builder
from minigraph.ops.elementwise import kind, promote
from minigraph.ops.reduction import sum
from minigraph.ops.window import Pair, Pairs, as_pair, scatter, steps, windows


@dataclass(frozen=True)
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

    def patches(self, x: Array, window: Pair) -> Array:
        """x by groups: [g, n, c / g, i, j, r, s]."""
        view = windows(x, window, self.stride, self._sides, self.dilation)
        n, c, *rest = view.shape
        return np.moveaxis(view.reshape(n, self.groups, c // self.groups, *rest), 1, 0)

    def forward(self, x: Array, w: Array, bias: Array | None = None) -> Array:
        k = w.shape[0] // self.groups
        parts = [
            np.tensordot(patch, w[g * k : (g + 1) * k], ((1, 4, 5), (1, 2, 3)))
            for g, patch in enumerate(self.patches(x, w.shape[2:]))
        ]
        y = np.ascontiguousarray(np.moveaxis(np.concatenate(parts, 3), 3, 1))
        return (y if bias is None else y + bias[:, None, None]).astype(x.dtype, copy=False)

    def grad(self, dy: Node, y: Node, x: Node, w: Node, *bias: Node) -> tuple[Node, ...]:
        dx = Conv2dBackwardData(self, x.shape)(dy, w)
        dw = Conv2dBackwardWeights(self, w.shape)(dy, x)
        return dx, dw, *(sum(dy, (0, 2, 3)) for _ in bias)


@dataclass(frozen=True)
class Conv2dBackwardData(Op):
    """The gradient of `conv` for its input, which has `shape`, from dy and w."""

    rounds_zeros = True  # by Winograd's algorithm

    conv: Conv2d
    shape: Shape

    def infer(self, dy: Spec, w: Spec) -> Spec:
        return Spec(self.shape, dy.dtype)

    def forward(self, dy: Array, w: Array) -> Array:
        conv = self.conv
        k = w.shape[0] // conv.groups
        parts = [
            np.tensordot(dy[:, g * k : (g + 1) * k], w[g * k : (g + 1) * k], ((1,), (0,)))
            for g in range(conv.groups)
        ]
        patches = np.moveaxis(np.concatenate(parts, 3), 3, 1)
        dx = scatter(patches, self.shape, conv.stride, conv._sides, conv.dilation)
        return dx.astype(dy.dtype, copy=False)

    def grad(self, ddx: Node, dx: Node, dy: Node, w: Node) -> tuple[Node, Node]:
        return self.conv(ddx, w), Conv2dBackwardWeights(self.conv, w.shape)(dy, ddx)


@dataclass(frozen=True)
class Conv2dBackwardWeights(Op):
    """The gradient of `conv` for its weights, which have `shape`, from dy and x."""

    rounds_zeros = True  # by Winograd's algorithm

    conv: Conv2d
    shape: Shape

    def infer(self, dy: Spec, x: Spec) -> Spec:
        return Spec(self.shape, dy.dtype)

    def forward(self, dy: Array, x: Array) -> Array:
        k = self.shape[0] // self.conv.groups
        parts = [
            np.tensordot(dy[:, g * k : (g + 1) * k], patch, ((0, 2, 3), (0, 2, 3)))
            for g, patch in enumerate(self.conv.patches(x, (self.shape[2], self.shape[3])))
        ]
        return np.concatenate(parts).astype(dy.dtype, copy=False)

    def grad(self, ddw: Node, dw: Node, dy: Node, x: Node) -> tuple[Node, Node]:
        return self.conv(x, ddw), Conv2dBackwardData(self.conv, x.shape)(dy, ddw)


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

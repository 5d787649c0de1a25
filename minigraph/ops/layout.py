"""Memory layouts of images, among which the optimizer chooses.

Users see images as [n, c, h, w].  Convolutions are faster if channels of a pixel are contiguous, so
the optimizer may store images as [n, c / l, h, w, l].  The number of `lanes` l is 8 or 16 in the
blocked layouts (oneDNN's nChw8c and nChw16c), c in nhwc, and 1 in nchw.

A layout is the shape of a node, so elementwise ops and reductions work in every layout unchanged,
and only `Reorder` moves elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minigraph.errors import ShapeError
from minigraph.graph import Array, Expanded, Node, Op, Shape, Spec, gradients


def packed(shape: Shape, lanes: int) -> Shape:
    """Return the shape of images [n, c, h, w] in the layout with these lanes.

    With one lane, any shape is returned unchanged.
    """
    if lanes == 1:
        return shape
    n, c, h, w = shape
    if c % lanes:
        raise ShapeError(f"{c} channels are not a multiple of {lanes}")
    return (n, c // lanes, h, w, lanes)


def unpacked(shape: Shape) -> Shape:
    """Return the shape [n, c, h, w] of images whose shape in a layout is `shape`."""
    n, c, h, w, *lanes = shape
    return (n, c * lanes[0], h, w) if lanes else shape


def pack(x: Array, lanes: int) -> Array:
    """Return images [n, c, h, w] as a contiguous array in the layout with these lanes."""
    if lanes > 1:
        n, c, h, w = x.shape
        x = x.reshape(n, c // lanes, lanes, h, w).transpose(0, 1, 3, 4, 2)
    return x if x.flags.c_contiguous else x.copy(order="C")


def unpack(x: Array) -> Array:
    """Return images as a contiguous array [n, c, h, w]."""
    if x.ndim == 4:
        return np.ascontiguousarray(x)
    return np.ascontiguousarray(np.moveaxis(x, 4, 2).reshape(unpacked(x.shape)))


@dataclass(frozen=True)
class Layout:
    """The memory layout of an operand.

    name   in reports and caches
    lanes  contiguous channels of a pixel; 0 for an operand that is not an image
    """

    name: str
    lanes: int = 0

    def __str__(self) -> str:
        return self.name


def image_layout(lanes: int, channels: int) -> Layout:
    """Return the layout of images with these lanes, under oneDNN's name for it."""
    if lanes == 1:
        return Layout("nchw", 1)
    return Layout("nhwc" if lanes == channels else f"nChw{lanes}c", lanes)


class Reorder(Op):
    """The same images with other lanes."""

    lanes: int
    grad = gradients(lambda dy, y, x: Reorder(x.shape[4] if x.ndim == 5 else 1)(dy))

    def infer(self, x: Spec) -> Spec:
        return Spec(packed(unpacked(x.shape), self.lanes), x.dtype)

    def forward(self, x: Array) -> Array:
        return pack(unpack(x), self.lanes)


class LaidOut(Expanded):
    """The op `plain` on images in layouts other than nchw; reports show the name of `plain`.

    lanes_in   the lanes of each input; 1 for one that is not an image
    lanes_out  the lanes of each result
    """

    plain: Op
    lanes_in: tuple[int, ...]
    lanes_out: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.plain.name)  # the class is frozen

    def infer(self, *xs: Spec) -> Spec | tuple[Spec, ...]:
        plain = self.plain.infer(*self.unpacked(xs))
        pairs = zip(plain if isinstance(plain, tuple) else [plain], self.lanes_out, strict=True)
        specs = tuple(Spec(packed(y.shape, lanes), y.dtype) for y, lanes in pairs)
        return specs if isinstance(plain, tuple) else specs[0]

    def unpacked(self, xs: Sequence[Spec]) -> list[Spec]:
        """Return the specs of inputs as `plain` takes them."""
        return [
            Spec(unpacked(x.shape), x.dtype) if lanes > 1 else x
            for x, lanes in zip(xs, self.lanes_in, strict=True)
        ]

    def expand(self, *xs: Node) -> tuple[Node, ...]:
        pairs = zip(xs, self.lanes_in, strict=True)
        results = self.plain.results(*(Reorder(1)(x) if lanes > 1 else x for x, lanes in pairs))
        laid_out = zip(results, self.lanes_out, strict=True)
        return tuple(Reorder(lanes)(y) if lanes > 1 else y for y, lanes in laid_out)

    def __str__(self) -> str:
        return f"{self.plain} lanes {self.lanes_in} to {self.lanes_out}"

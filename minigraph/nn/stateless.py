"""Layers without parameters: dropout, pooling of images (n, c, h, w), shapes.

As in `torch.nn`.  `inplace` is there for its arguments and changes nothing: where results lie in
memory is the compiler's work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from minigraph import ops
from minigraph.arguments import Axis, Count, Kind, at_least, checked, optional
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import Node, as_node, constant
from minigraph.nn.module import Module
from minigraph.ops.window import sides


@checked
@dataclass(eq=False, repr=False)
class Dropout(Module):
    """In training each element 0 with probability p, else x / (1 - p), as in `torch.nn`.

    Masks follow the option `seed` of `mg.comp_graph`.
    """

    p: float = 0.5
    inplace: bool = False

    shown = "p={p}, inplace={inplace}"

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise GraphError(f"{type(self).__name__}: p is {self.p}; it takes a probability")

    def forward(self, x: Any) -> Node:
        return ops.dropout(x, self.p, self.training)


class Dropout2d(Dropout):
    """In training each channel of (n, c, ...) 0 with probability p, else x / (1 - p)."""

    def forward(self, x: Any) -> Node:
        x = as_node(x)
        if x.ndim < 3:
            raise ShapeError(f"the input is (n, c, ...) with at least 3 axes, not {x.shape}")
        if not self.training or not self.p:
            return x
        ones = np.ones((*x.shape[:2], *(1,) * (x.ndim - 2)))
        return x * ops.dropout(constant(ones, x.dtype), self.p)


@checked
@dataclass(eq=False, repr=False)
class MaxPool2d(Module):
    """The largest element of each window; stride None is the kernel size.

    dilation, return_indices  are there for torch's order of arguments; only 1 and False work
    """

    kernel_size: Annotated[Any, sides(1)]
    stride: Annotated[Any, sides(1)] | None = None
    padding: Annotated[Any, sides(0)] = 0
    dilation: Annotated[Any, sides(1)] = 1
    return_indices: bool = False
    ceil_mode: bool = False

    shown = (
        "kernel_size={kernel_size}, stride={stride}, padding={padding}, dilation={dilation}, "
        "ceil_mode={ceil_mode}"
    )

    def __post_init__(self) -> None:
        if self.dilation not in (1, (1, 1)) or self.return_indices:
            raise GraphError(
                "MaxPool2d: dilation other than 1 and return_indices are not supported"
            )
        if self.stride is None:
            self.stride = self.kernel_size

    def forward(self, x: Any) -> Node:
        return ops.max_pool2d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode)


@checked
@dataclass(eq=False, repr=False)
class AvgPool2d(Module):
    """The mean of each window; stride None is the kernel size."""

    kernel_size: Annotated[Any, sides(1)]
    stride: Annotated[Any, sides(1)] | None = None
    padding: Annotated[Any, sides(0)] = 0
    ceil_mode: bool = False
    count_include_pad: bool = True

    shown = "kernel_size={kernel_size}, stride={stride}, padding={padding}"

    def __post_init__(self) -> None:
        if self.stride is None:
            self.stride = self.kernel_size

    def forward(self, x: Any) -> Node:
        return ops.avg_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )


def _output(value: Any) -> Any:
    if isinstance(value, list | tuple):
        height, width = map(OUTPUT_SIDE.parse, value)
        return height, width
    return OUTPUT_SIDE.parse(value)


OUTPUT_SIDE = optional(at_least(1, ShapeError))
OUTPUT = Kind("an integer >= 1 or None, or a pair of them", _output, ShapeError)


@checked
@dataclass(eq=False, repr=False)
class AdaptiveAvgPool2d(Module):
    """An image of `output_size`, each pixel the mean of its part of the input.

    output_size  an int or a pair; None keeps the input's size
    """

    output_size: Annotated[Any, OUTPUT]

    shown = "output_size={output_size}"

    def forward(self, x: Any) -> Node:
        x, size = as_node(x), self.output_size
        sizes = size if isinstance(size, tuple | list) else (size, size)
        if x.ndim == 4 and len(sizes) == 2:  # else the op says what is wrong
            sizes = [n if m is None else m for m, n in zip(sizes, x.shape[2:], strict=True)]
        return ops.adaptive_avg_pool2d(x, sizes)


@checked
@dataclass(eq=False, repr=False)
class Flatten(Module):
    """The axes from start_dim to end_dim as one, as in `torch.nn`."""

    start_dim: Axis = 1
    end_dim: Axis = -1

    shown = "start_dim={start_dim}, end_dim={end_dim}"

    def forward(self, x: Any) -> Node:
        return ops.flatten(x, self.start_dim, self.end_dim)


class Identity(Module):
    """What it is given; arguments to make it are ignored, so that it can take any layer's place."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        return x


@checked
@dataclass(eq=False, repr=False)
class PixelShuffle(Module):
    """Images (n, c * r * r, h, w) as (n, c, h * r, w * r), where r is `upscale_factor`."""

    upscale_factor: Count

    shown = "upscale_factor={upscale_factor}"

    def forward(self, x: Any) -> Node:
        x, r = as_node(x), self.upscale_factor
        if x.ndim != 4 or x.shape[1] % (r * r):
            raise ShapeError(f"the input is (n, c * {r * r}, h, w), not {x.shape}")
        n, channels, h, w = x.shape
        c = channels // (r * r)
        parts = ops.permute_dims(ops.reshape(x, (n, c, r, r, h, w)), (0, 1, 4, 2, 5, 3))
        return ops.reshape(parts, (n, c, h * r, w * r))

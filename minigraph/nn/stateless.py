"""Layers without parameters: activations, dropout, pooling of images (n, c, h, w), shapes.

As in `torch.nn`.  `inplace` is there for its arguments and changes nothing: where results lie in
memory is the compiler's work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from minigraph import ops
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import Node, as_node
from minigraph.nn.module import Module
from minigraph.ops.shape import normalize_axis


@dataclass(eq=False, repr=False)
class ReLU(Module):
    """0 where x is negative, else x."""

    inplace: bool = False

    def forward(self, x: Any) -> Node:
        return ops.relu(x)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


@dataclass(eq=False, repr=False)
class Hardswish(Module):
    """0 below -3, x above 3, x * (x + 3) / 6 in between."""

    inplace: bool = False

    def forward(self, x: Any) -> Node:
        return ops.hardswish(x)


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
            raise GraphError(f"Dropout: p is a probability, not {self.p!r}")

    def forward(self, x: Any) -> Node:
        return ops.dropout(x, self.p, self.training)


@dataclass(eq=False, repr=False)
class MaxPool2d(Module):
    """The largest element of each window; stride None is the kernel size.

    dilation, return_indices  are there for torch's order of arguments; only 1 and False work
    """

    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    dilation: Any = 1
    return_indices: bool = False
    ceil_mode: bool = False

    shown = (
        "kernel_size={kernel_size}, stride={stride}, padding={padding}, dilation={dilation}, "
        "ceil_mode={ceil_mode}"
    )

    def __post_init__(self) -> None:
        if self.dilation not in (1, (1, 1), [1, 1]) or self.return_indices:
            raise GraphError(
                "MaxPool2d: dilation other than 1 and return_indices are not supported"
            )
        if self.stride is None:
            self.stride = self.kernel_size

    def forward(self, x: Any) -> Node:
        return ops.max_pool2d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode)


@dataclass(eq=False, repr=False)
class AvgPool2d(Module):
    """The mean of each window; stride None is the kernel size."""

    kernel_size: Any
    stride: Any = None
    padding: Any = 0
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


@dataclass(eq=False, repr=False)
class AdaptiveAvgPool2d(Module):
    """An image of `output_size`, each pixel the mean of its part of the input.

    output_size  an int or a pair; None keeps the input's size
    """

    output_size: Any

    shown = "output_size={output_size}"

    def forward(self, x: Any) -> Node:
        x, size = as_node(x), self.output_size
        sizes = size if isinstance(size, tuple | list) else (size, size)
        if x.ndim == 4 and len(sizes) == 2:  # else the op says what is wrong
            sizes = [n if m is None else m for m, n in zip(sizes, x.shape[2:], strict=True)]
        return ops.adaptive_avg_pool2d(x, sizes)


@dataclass(eq=False, repr=False)
class Flatten(Module):
    """The axes from start_dim to end_dim as one, as in `torch.nn`."""

    start_dim: int = 1
    end_dim: int = -1

    shown = "start_dim={start_dim}, end_dim={end_dim}"

    def forward(self, x: Any) -> Node:
        x = as_node(x)
        start, end = (normalize_axis(axis, x.ndim) for axis in (self.start_dim, self.end_dim))
        if start > end:
            raise ShapeError(f"start_dim {start} comes after end_dim {end}")
        size = math.prod(x.shape[start : end + 1])  # not -1, which an empty batch leaves open
        return ops.reshape(x, (*x.shape[:start], size, *x.shape[end + 1 :]))


class Identity(Module):
    """What it is given; arguments to make it are ignored, so that it can take any layer's place."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        return x

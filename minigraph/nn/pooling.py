"""Pooling of images (n, c, h, w), as in `torch.nn`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import Node, as_node
from minigraph.nn.module import Module


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

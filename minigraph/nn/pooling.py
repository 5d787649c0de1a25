"""Pooling of images (n, c, h, w) and sequences (n, c, length), as in `torch.nn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from minigraph import ops
from minigraph.arguments import Count, Size
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import Node, as_node
from minigraph.nn.layer import layer_of
from minigraph.nn.module import Module
from minigraph.ops.window import OutputSize, sides


class PoolingLayer(Module):
    """What poolings do with arguments of torch's: the stride is the kernel size by default."""

    stride: Any = None
    dilation: Any = 1
    return_indices: bool = False

    def __post_init__(self) -> None:
        if self.dilation not in (1, (1, 1)) or self.return_indices:
            what = f"{type(self).__name__}: dilation other than 1 and return_indices"
            raise GraphError(f"{what} are not supported")
        if self.stride is None and hasattr(self, "kernel_size"):
            self.stride = self.kernel_size


@layer_of()
class MaxPool2d(PoolingLayer):
    """The largest element of each window; stride None is the kernel size.

    dilation, return_indices  are there for torch's order of arguments; only 1 and False work

    >>> nn.MaxPool2d(3, stride=2, padding=1)(mg.input("x", (8, 16, 32, 32))).shape
    (8, 16, 16, 16)
    """

    kernel_size: Annotated[Any, sides(1)]
    stride: Annotated[Any, sides(1)] | None = None
    padding: Annotated[Any, sides(0)] = 0
    dilation: Annotated[Any, sides(1)] = 1
    return_indices: bool = False
    ceil_mode: bool = False

    _repr_format = (
        "kernel_size={kernel_size}, stride={stride}, padding={padding}, dilation={dilation}, "
        "ceil_mode={ceil_mode}"
    )

    def forward(self, x: Any) -> Node:
        return ops.max_pool2d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode)


@layer_of()
class AvgPool2d(PoolingLayer):
    """The mean of each window; stride None is the kernel size.

    >>> nn.AvgPool2d(2)(mg.input("x", (8, 16, 32, 32))).shape
    (8, 16, 16, 16)
    """

    kernel_size: Annotated[Any, sides(1)]
    stride: Annotated[Any, sides(1)] | None = None
    padding: Annotated[Any, sides(0)] = 0
    ceil_mode: bool = False
    count_include_pad: bool = True

    _repr_format = "kernel_size={kernel_size}, stride={stride}, padding={padding}"

    def forward(self, x: Any) -> Node:
        return ops.avg_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )


@layer_of()
class AdaptiveAvgPool2d(PoolingLayer):
    """An image of `output_size`, each pixel the mean of its part of the input.

    output_size  an int or a pair; None keeps the input's size

    >>> nn.AdaptiveAvgPool2d(1)(mg.input("x", (8, 16, 32, 32))).shape
    (8, 16, 1, 1)
    """

    output_size: OutputSize

    _repr_format = "output_size={output_size}"

    def forward(self, x: Any) -> Node:
        return ops.adaptive_avg_pool2d(x, self.output_size)


@layer_of()
class AdaptiveMaxPool2d(PoolingLayer):
    """An image of `output_size`, each pixel the largest element of its part of the input.

    output_size     an int or a pair; None keeps the input's size
    return_indices  is there for torch's order of arguments; only False works

    >>> nn.AdaptiveMaxPool2d((2, 4))(mg.input("x", (8, 16, 32, 32))).shape
    (8, 16, 2, 4)
    """

    output_size: OutputSize
    return_indices: bool = False

    _repr_format = "output_size={output_size}"

    def forward(self, x: Any) -> Node:
        return ops.adaptive_max_pool2d(x, self.output_size)


@layer_of()
class MaxPool1d(PoolingLayer):
    """The largest element of each window of sequences (n, c, length); arguments as `MaxPool2d`.

    >>> nn.MaxPool1d(2)(mg.input("x", (8, 16, 100))).shape
    (8, 16, 50)
    """

    kernel_size: Count
    stride: Count | None = None
    padding: Size = 0
    dilation: Count = 1
    return_indices: bool = False
    ceil_mode: bool = False

    _repr_format = MaxPool2d._repr_format

    def forward(self, x: Any) -> Node:
        return _along_rows(self, ops.max_pool2d, x, self.ceil_mode)


@layer_of()
class AvgPool1d(PoolingLayer):
    """The mean of each window of sequences (n, c, length); stride None is the kernel size.

    >>> nn.AvgPool1d(2)(mg.input("x", (8, 16, 100))).shape
    (8, 16, 50)
    """

    kernel_size: Count
    stride: Count | None = None
    padding: Size = 0
    ceil_mode: bool = False
    count_include_pad: bool = True

    _repr_format = "kernel_size=({kernel_size},), stride=({stride},), padding=({padding},)"

    def forward(self, x: Any) -> Node:
        return _along_rows(self, ops.avg_pool2d, x, self.ceil_mode, self.count_include_pad)


@layer_of()
class AdaptiveAvgPool1d(PoolingLayer):
    """A sequence of `output_size` elements, each the mean of its part of (n, c, length).

    >>> nn.AdaptiveAvgPool1d(4)(mg.input("x", (8, 16, 100))).shape
    (8, 16, 4)
    """

    output_size: Count

    _repr_format = "output_size={output_size}"

    def forward(self, x: Any) -> Node:
        return ops.squeeze(ops.adaptive_avg_pool2d(_as_image(x), (1, self.output_size)), 2)


@layer_of()
class AdaptiveMaxPool1d(PoolingLayer):
    """A sequence of `output_size` elements, each the largest of its part of (n, c, length).

    return_indices  is there for torch's order of arguments; only False works

    >>> nn.AdaptiveMaxPool1d(4)(mg.input("x", (8, 16, 100))).shape
    (8, 16, 4)
    """

    output_size: Count
    return_indices: bool = False

    _repr_format = "output_size={output_size}"

    def forward(self, x: Any) -> Node:
        return ops.squeeze(ops.adaptive_max_pool2d(_as_image(x), (1, self.output_size)), 2)


def _along_rows(layer: Any, pool: Callable[..., Node], x: Any, *others: Any) -> Node:
    sizes = (1, layer.kernel_size), (1, layer.stride), (0, layer.padding)
    return ops.squeeze(pool(_as_image(x), *sizes, *others), 2)


def _as_image(x: Any) -> Node:
    x = as_node(x)
    if x.ndim != 3:
        raise ShapeError(f"the input is (n, c, length), not {x.shape}")
    return ops.expand_dims(x, 2)

"""Layers that multiply by weights: convolution and linear, as in `torch.nn`."""

from __future__ import annotations

import math
from typing import Any

from minigraph import ops
from minigraph.arguments import Count, Size, checked
from minigraph.errors import ShapeError
from minigraph.graph import DType, Node, Parameter, Shape, as_node
from minigraph.nn import init
from minigraph.nn.init import Weights
from minigraph.nn.module import Module
from minigraph.ops.window import Border, Window


class Weighted(Module):
    """A layer with `weight` (out, in, ...) and, if wanted, `bias` of `outputs`, by default out.

    Both start uniformly distributed within 1 / sqrt(fan_in) of 0, which is what torch's
    kaiming_uniform_ with a = sqrt(5) comes to.
    """

    bias: Parameter | None

    def __init__(self, shape: Shape, bias: bool, dtype: DType, outputs: int | None = None) -> None:
        super().__init__()
        length = shape[0] if outputs is None else outputs
        self.weight = Parameter(init.full(shape, 0, dtype))
        self.bias = Parameter(init.full((length,), 0, dtype)) if bias else None
        bound = 1 / math.sqrt(math.prod(self.weight.shape[1:]) or 1)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)


class Convolution(Weighted):
    """What convolutions share: groups of channels, and how they print.

    transposed  whether `weight` is (in, out / groups, ...), not (out, in / groups, ...)
    """

    transposed = False

    def __init__(
        self,
        channels: tuple[int, int],
        kernel_size: tuple[int, ...],
        groups: int,
        bias: bool,
        dtype: DType,
    ) -> None:
        self.in_channels, self.out_channels = channels
        self.groups = groups
        if any(n % groups for n in channels):
            raise ShapeError(
                f"{type(self).__name__}: {self.in_channels} input and {self.out_channels} output "
                f"channels cannot be divided into {groups} groups"
            )
        first, second = channels if self.transposed else reversed(channels)
        shape = (first, second // groups, *kernel_size)
        super().__init__(shape, bias, dtype, outputs=self.out_channels)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}"
        for name, usual in (("kernel_size", None), ("stride", None), *USUAL.items()):
            value = getattr(self, name, usual)
            sizes = value if isinstance(value, tuple) else (value,)
            if any(size != usual for size in sizes):
                text += f", {name}={value if name == 'groups' else sizes}"
        return text if self.bias is not None else f"{text}, bias=False"


USUAL = {"padding": 0, "dilation": 1, "output_padding": 0, "groups": 1}  # which is not printed


class Conv1d(Convolution):
    """Convolution of sequences (n, in_channels, length)."""

    @checked
    def __init__(
        self,
        in_channels: Size,
        out_channels: Size,
        kernel_size: Count,
        stride: Count = 1,
        padding: Size = 0,
        dilation: Count = 1,
        groups: Count = 1,
        bias: bool = True,
        dtype: Weights = "float32",
    ) -> None:
        self.kernel_size, self.stride = kernel_size, stride
        self.padding, self.dilation = padding, dilation
        super().__init__((in_channels, out_channels), (kernel_size,), groups, bias, dtype)

    def forward(self, x: Any) -> Node:
        x = as_node(x)
        if x.ndim != 3:
            raise ShapeError(f"the input is (n, {self.in_channels}, length), not {x.shape}")
        y = ops.conv2d(
            ops.expand_dims(x, 2),
            ops.expand_dims(self.weight, 2),
            self.bias,
            (1, self.stride),
            (0, self.padding),
            (1, self.dilation),
            self.groups,
        )
        return ops.squeeze(y, 2)


class Conv2d(Convolution):
    """Convolution of images (n, in_channels, h, w); sizes are ints or pairs."""

    @checked
    def __init__(
        self,
        in_channels: Size,
        out_channels: Size,
        kernel_size: Window,
        stride: Window = 1,
        padding: Border = 0,
        dilation: Window = 1,
        groups: Count = 1,
        bias: bool = True,
        dtype: Weights = "float32",
    ) -> None:
        self.kernel_size, self.stride = kernel_size, stride
        self.padding, self.dilation = padding, dilation
        super().__init__((in_channels, out_channels), kernel_size, groups, bias, dtype)

    def forward(self, x: Any) -> Node:
        return ops.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class ConvTranspose2d(Convolution):
    """The gradient of a convolution, as a layer: images (n, in_channels, h, w) grow by `stride`.

    `weight` is (in_channels, out_channels / groups, h, w).  output_padding, less than the stride,
    chooses among the sizes that the convolution would make one.
    """

    transposed = True

    @checked
    def __init__(
        self,
        in_channels: Size,
        out_channels: Size,
        kernel_size: Window,
        stride: Window = 1,
        padding: Border = 0,
        output_padding: Border = 0,
        groups: Count = 1,
        bias: bool = True,
        dilation: Window = 1,
        dtype: Weights = "float32",
    ) -> None:
        self.kernel_size, self.stride = kernel_size, stride
        self.padding, self.output_padding, self.dilation = padding, output_padding, dilation
        super().__init__((in_channels, out_channels), kernel_size, groups, bias, dtype)

    def forward(self, x: Any) -> Node:
        return ops.conv_transpose2d(
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.output_padding,
            self.groups,
            self.dilation,
        )


class Linear(Weighted):
    """x @ weight.T + bias of x (..., in_features)."""

    @checked
    def __init__(
        self,
        in_features: Size,
        out_features: Size,
        bias: bool = True,
        dtype: Weights = "float32",
    ) -> None:
        self.in_features, self.out_features = in_features, out_features
        super().__init__((out_features, in_features), bias, dtype)

    def forward(self, x: Any) -> Node:
        return ops.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"

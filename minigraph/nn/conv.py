"""Layers that multiply by weights: convolution and linear, as in `torch.nn`."""

from __future__ import annotations

import math
from typing import Any

from minigraph import ops
from minigraph.errors import ShapeError
from minigraph.graph import Node, Parameter
from minigraph.nn import init
from minigraph.nn.module import Module
from minigraph.ops.window import as_pair


class Weighted(Module):
    """A layer with `weight` (out, in, ...) and, if wanted, `bias` (out,).

    Both start uniformly distributed within 1 / sqrt(fan_in) of 0, which is what torch's
    kaiming_uniform_ with a = sqrt(5) comes to.
    """

    bias: Parameter | None

    def __init__(self, shape: tuple[int, ...], bias: bool, dtype: Any) -> None:
        super().__init__()
        what = type(self).__name__
        self.weight = init.zeros(what, shape, dtype)
        self.bias = init.zeros(what, shape[:1], dtype) if bias else None
        bound = 1 / math.sqrt(math.prod(self.weight.shape[1:]) or 1)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)


class Conv2d(Weighted):
    """Convolution of images (n, in_channels, h, w); sizes are ints or pairs."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: Any = "float32",
    ) -> None:
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"Conv2d: {in_channels} input and {out_channels} output channels cannot be "
                f"divided into {groups} groups"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = as_pair("Conv2d: kernel_size", kernel_size, 1)
        self.stride = as_pair("Conv2d: stride", stride, 1)
        self.padding = as_pair("Conv2d: padding", padding, 0)
        self.dilation = as_pair("Conv2d: dilation", dilation, 1)
        super().__init__((out_channels, in_channels // groups, *self.kernel_size), bias, dtype)

    def forward(self, x: Any) -> Node:
        return ops.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        text += f", stride={self.stride}"
        for name, default in (("padding", (0, 0)), ("dilation", (1, 1)), ("groups", 1)):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text if self.bias is not None else f"{text}, bias=False"


class Linear(Weighted):
    """x @ weight.T + bias of x (..., in_features)."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: Any = "float32"
    ) -> None:
        self.in_features, self.out_features = in_features, out_features
        super().__init__((out_features, in_features), bias, dtype)

    def forward(self, x: Any) -> Node:
        return ops.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"

"""Linear layers: convolutions, products with a matrix, vectors of tokens; as in `torch.nn`."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np

from minigraph import ops
from minigraph.arguments import Axis, Count, Size, at_least, short_repr
from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import Node, Parameter, Shape, as_node
from minigraph.nn import init
from minigraph.nn.init import Weights
from minigraph.nn.layer import Flag, layer_of, set_bias
from minigraph.nn.module import Module
from minigraph.ops.elementwise import kind
from minigraph.ops.indexing import take_tokens
from minigraph.ops.shape import normalize_axis
from minigraph.ops.window import Border, ConvBorder, Window, around_conv, or_named

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class Weighted(Module):
    """A layer with `weight` (out, in, ...) and an optional `bias`."""

    bias: Any
    dtype: Any

    def _add_weights(self, shape: Shape, outputs: int) -> None:
        """Make `weight` of a shape, and `bias` (outputs,).

        Both are initialised uniformly within 1 / sqrt(fan_in) of 0, like torch's kaiming_uniform_
        with a = sqrt(5).
        """
        self.weight = Parameter(init.full(shape, 0, self.dtype))
        set_bias(self, Parameter(init.full((outputs,), 0, self.dtype)) if self.bias else None)
        bound = 1 / math.sqrt(math.prod(shape[1:]) or 1)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)


class Convolution(Weighted):
    """The base of convolutions: groups of channels, and `repr`.

    transposed    whether `weight` is (in, out / groups, ...), not (out, in / groups, ...)
    padding_mode  "zeros", or a mode of `ops.pad`
    """

    transposed = False
    padding_mode: Any = "zeros"
    in_channels: int
    out_channels: int
    kernel_size: Any
    stride: Any
    padding: Any
    dilation: Any
    groups: int

    def __post_init__(self) -> None:
        channels = self.in_channels, self.out_channels
        if any(n % self.groups for n in channels):
            raise ShapeError(
                f"{type(self).__name__}: {self.in_channels} input and {self.out_channels} output "
                f"channels cannot be divided into {self.groups} groups"
            )
        if not self.transposed:
            self._sides()  # or ShapeError
        first, second = channels if self.transposed else reversed(channels)
        shape = (first, second // self.groups, *_as_tuple(self.kernel_size))
        self._add_weights(shape, self.out_channels)

    def _sides(self) -> Any:
        sizes = (self.padding, self.kernel_size, self.stride, self.dilation)
        return around_conv(*map(_as_tuple, sizes))

    def _padded(self, x: Node) -> tuple[Node, Any]:
        """Return x (n, in_channels, ...), padded if not by zeros, and the padding by zeros."""
        axes = len(_as_tuple(self.kernel_size))
        if x.ndim != 2 + axes:
            layout = ("length", "h, w")[axes - 1]
            raise ShapeError(f"the input is (n, {self.in_channels}, {layout}), not {x.shape}")
        if self.padding_mode == "zeros":
            return x, self.padding
        return ops.pad(x, ((0, 0), (0, 0), *self._sides()), mode=self.padding_mode), 0

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}"
        for name, default in (("kernel_size", None), ("stride", None), *HIDDEN_DEFAULTS.items()):
            value = getattr(self, name, default)
            sizes = value if isinstance(value, tuple) else (value,)
            if any(size != default for size in sizes):
                is_single = name == "groups" or isinstance(value, str)
                text += f", {name}={value if is_single else sizes}"
        text += "" if self.bias is not None else ", bias=False"
        return text if self.padding_mode == "zeros" else f"{text}, padding_mode={self.padding_mode}"


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, int) else value


HIDDEN_DEFAULTS = {"padding": 0, "dilation": 1, "output_padding": 0, "groups": 1}  # not in `repr`


@layer_of()
class Conv1d(Convolution):
    """Convolution of sequences (n, in_channels, length); padding as that of `Conv2d`.

    >>> nn.Conv1d(3, 8, kernel_size=5, padding="same")(mg.input("x", (4, 3, 100))).shape
    (4, 8, 100)
    """

    in_channels: Size
    out_channels: Size
    kernel_size: Count
    stride: Count = 1
    padding: Annotated[Any, or_named(at_least(0, ShapeError))] = 0
    dilation: Count = 1
    groups: Count = 1
    bias: Flag = True
    padding_mode: PaddingMode = "zeros"
    dtype: Weights = "float32"

    def forward(self, x: Any) -> Node:
        x, padding = self._padded(as_node(x))
        padding = padding if isinstance(padding, str) else (0, padding)
        sizes = (1, self.stride), padding, (1, self.dilation)
        images, weight = ops.expand_dims(x, 2), ops.expand_dims(self.weight, 2)
        return ops.squeeze(ops.conv2d(images, weight, self.bias, *sizes, self.groups), 2)


@layer_of()
class Conv2d(Convolution):
    """Convolution of images (n, in_channels, h, w); sizes are ints or pairs.

    padding       also "same", which keeps the size with a stride of 1, or "valid", which is 0
    padding_mode  "zeros", or a mode of `ops.pad`

    >>> conv = nn.Conv2d(3, 8, kernel_size=3, stride=2, padding=1)
    >>> conv(mg.input("images", (4, 3, 32, 32))).shape
    (4, 8, 16, 16)
    >>> conv.weight.shape
    (8, 3, 3, 3)
    """

    in_channels: Size
    out_channels: Size
    kernel_size: Window
    stride: Window = 1
    padding: ConvBorder = 0
    dilation: Window = 1
    groups: Count = 1
    bias: Flag = True
    padding_mode: PaddingMode = "zeros"
    dtype: Weights = "float32"

    def forward(self, x: Any) -> Node:
        x, padding = self._padded(as_node(x))
        sizes = self.stride, padding, self.dilation
        return ops.conv2d(x, self.weight, self.bias, *sizes, self.groups)


@layer_of()
class ConvTranspose2d(Convolution):
    """The gradient of a convolution, as a layer: images (n, in_channels, h, w) grow by `stride`.

    `weight` is (in_channels, out_channels / groups, h, w).  output_padding, less than the stride,
    chooses among the sizes of images for which the convolution has the size of x.

    >>> nn.ConvTranspose2d(8, 3, kernel_size=2, stride=2)(mg.input("x", (4, 8, 16, 16))).shape
    (4, 3, 32, 32)
    """

    transposed = True

    in_channels: Size
    out_channels: Size
    kernel_size: Window
    stride: Window = 1
    padding: Border = 0
    output_padding: Border = 0
    groups: Count = 1
    bias: Flag = True
    dilation: Window = 1
    dtype: Weights = "float32"

    def forward(self, x: Any) -> Node:
        sizes = self.stride, self.padding, self.output_padding
        return ops.conv_transpose2d(x, self.weight, self.bias, *sizes, self.groups, self.dilation)


@layer_of()
class Linear(Weighted):
    """x @ weight.T + bias of x (..., in_features).

    >>> nn.Linear(8, 2)(mg.input("x", (4, 8))).shape
    (4, 2)
    """

    in_features: Size
    out_features: Size
    bias: Flag = True
    dtype: Weights = "float32"

    def __post_init__(self) -> None:
        self._add_weights((self.out_features, self.in_features), self.out_features)

    def forward(self, x: Any) -> Node:
        return ops.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


@layer_of()
class Embedding(Module):
    """The vectors (..., embedding_dim) of tokens (...), integers from 0 to num_embeddings - 1.

    A token that is out of range, or negative, is a GraphError at the call.

    padding_idx  a token whose vector starts as zeros and is not trained; -1 is the last token

    >>> nn.Embedding(1000, 32)(mg.input("tokens", (4, 20), "int64")).shape
    (4, 20, 32)
    """

    num_embeddings: Size
    embedding_dim: Size
    padding_idx: Axis | None = None
    dtype: Weights = "float32"

    def __post_init__(self) -> None:
        count, padding = self.num_embeddings, self.padding_idx
        self.weight = Parameter(init.full((count, self.embedding_dim), 0, self.dtype))
        init.normal_(self.weight)
        if padding is not None:
            if not -count <= padding < count:
                raise ShapeError(
                    f"Embedding: padding_idx is {short_repr(padding)}; there are {count} tokens"
                )
            self.padding_idx = normalize_axis(padding, count)
            values = np.array(self.weight.numpy())
            values[self.padding_idx] = 0
            self.weight.assign(values)

    def forward(self, x: Any) -> Node:
        x = as_node(x)
        if kind(x.dtype) not in "iu":
            raise DTypeError(f"tokens are integers, not {x.dtype.name}")
        return take_tokens(self.weight, x, self.padding_idx)

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        return text if self.padding_idx is None else f"{text}, padding_idx={self.padding_idx}"

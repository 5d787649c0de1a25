"""Layers without parameters that drop or rearrange elements, as in `torch.nn`."""

from __future__ import annotations

import math
from typing import Annotated, Any

from minigraph import ops
from minigraph.arguments import Axis, Count, Probability
from minigraph.errors import ShapeError
from minigraph.graph import Node, as_node
from minigraph.nn.layer import FunctionLayer, layer_of
from minigraph.nn.module import Module
from minigraph.ops.shape import PARTIAL, normalize_axis


@layer_of()
class Dropout(Module):
    """In training each element 0 with probability p, else x / (1 - p), as in `torch.nn`.

    Masks follow the option `seed` of `mg.comp_graph`.

    >>> x = mg.input("x", (8, 16))
    >>> nn.Dropout(0.1).eval()(x) is x
    True
    """

    p: Probability = 0.5
    inplace: bool = False

    _repr_format = "p={p}, inplace={inplace}"

    def forward(self, x: Any) -> Node:
        return ops.dropout(x, self.p, self.training)


@layer_of()
class Dropout2d(Dropout):
    """In training each channel of (n, c, ...) 0 with probability p, else x / (1 - p).

    >>> nn.Dropout2d(0.1)(mg.input("x", (8, 3, 32, 32))).shape
    (8, 3, 32, 32)
    """

    def forward(self, x: Any) -> Node:
        x = as_node(x)
        if x.ndim < 3:
            raise ShapeError(f"the input is (n, c, ...) with at least 3 axes, not {x.shape}")
        if not self.training or not self.p:
            return x
        ones = ops.ones((*x.shape[:2], *(1,) * (x.ndim - 2)), x.dtype)
        return x * ops.dropout(ones, self.p)


@layer_of(ops.flatten)
class Flatten(FunctionLayer):
    """The axes from start_dim to end_dim as one, as in `torch.nn`.

    >>> nn.Flatten()(mg.input("x", (8, 16, 4, 4))).shape
    (8, 256)
    """

    start_dim: Axis = 1
    end_dim: Axis = -1


@layer_of()
class Unflatten(Module):
    """The axis `dim` as several axes of sizes `unflattened_size`, of which one may be -1.

    >>> nn.Unflatten(1, (16, 4, 4))(mg.input("x", (8, 256))).shape
    (8, 16, 4, 4)
    """

    dim: Axis
    unflattened_size: Annotated[Any, PARTIAL]

    _repr_format = "dim={dim}, unflattened_size={unflattened_size}"

    def forward(self, x: Any) -> Node:
        x = as_node(x)
        axis = normalize_axis(self.dim, x.ndim)
        sizes = self.unflattened_size
        product = math.prod(n for n in sizes if n != -1)
        if sizes.count(-1) > 1 or not product or x.shape[axis] % product:
            raise ShapeError(f"axis {axis} of shape {x.shape} does not become {sizes}")
        sizes = [x.shape[axis] // product if n == -1 else n for n in sizes]
        return ops.reshape(x, (*x.shape[:axis], *sizes, *x.shape[axis + 1 :]))


class Identity(Module):
    """Its input; `__init__` ignores its arguments, so that it can replace any layer.

    >>> x = mg.input("x", (8, 16))
    >>> nn.Identity()(x) is x
    True
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        return x


@layer_of()
class PixelShuffle(Module):
    """Images (n, c * r * r, h, w) as (n, c, h * r, w * r), with r = `upscale_factor`.

    >>> nn.PixelShuffle(2)(mg.input("x", (8, 12, 16, 16))).shape
    (8, 3, 32, 32)
    """

    upscale_factor: Count

    _repr_format = "upscale_factor={upscale_factor}"

    def forward(self, x: Any) -> Node:
        x, r = as_node(x), self.upscale_factor
        if x.ndim != 4 or x.shape[1] % (r * r):
            raise ShapeError(f"the input is (n, c * {r * r}, h, w), not {x.shape}")
        n, channels, h, w = x.shape
        c = channels // (r * r)
        parts = ops.permute_dims(ops.reshape(x, (n, c, r, r, h, w)), (0, 1, 4, 2, 5, 3))
        return ops.reshape(parts, (n, c, h * r, w * r))

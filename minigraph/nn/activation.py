"""Activations as modules, as in `torch.nn`."""

from __future__ import annotations

from typing import Any, Literal

from minigraph import ops
from minigraph.arguments import Axis, Count
from minigraph.graph import Node, Parameter, as_node
from minigraph.nn.init import Weights, full
from minigraph.nn.layer import FunctionLayer, layer_of
from minigraph.nn.module import Module


@layer_of()
class Activation(FunctionLayer):
    """A function without arguments, but for `inplace`."""

    inplace: bool = False


@layer_of(ops.relu)
class ReLU(Activation): ...


@layer_of(ops.relu6)
class ReLU6(Activation): ...


@layer_of(ops.hardsigmoid)
class Hardsigmoid(Activation): ...


@layer_of(ops.hardswish)
class Hardswish(Activation): ...


@layer_of(ops.mish)
class Mish(Activation): ...


@layer_of(ops.silu)
class SiLU(Activation): ...


@layer_of(ops.sigmoid)
class Sigmoid(FunctionLayer): ...


@layer_of(ops.tanh)
class Tanh(FunctionLayer): ...


@layer_of(ops.leaky_relu)
class LeakyReLU(FunctionLayer):
    negative_slope: float = 0.01
    inplace: bool = False


@layer_of(ops.elu)
class ELU(FunctionLayer):
    alpha: float = 1.0
    inplace: bool = False


@layer_of(ops.gelu)
class GELU(FunctionLayer):
    approximate: Literal["none", "tanh"] = "none"


@layer_of(ops.softplus)
class Softplus(FunctionLayer):
    beta: float = 1.0
    threshold: float = 20.0


@layer_of()
class PReLU(Module):
    """x where it is positive, else x * weight.

    num_parameters  number of trained weights: 1, or one for each channel of (n, c, ...)
    init            their initial value

    >>> nn.PReLU(num_parameters=16)(mg.input("x", (8, 16))).shape
    (8, 16)
    """

    num_parameters: Count = 1
    init: float = 0.25
    dtype: Weights = "float32"

    _repr_format = "num_parameters={num_parameters}"

    def __post_init__(self) -> None:
        self.weight = Parameter(full((self.num_parameters,), self.init, self.dtype))

    def forward(self, x: Any) -> Node:
        return ops.prelu(x, self.weight)


@layer_of(ops.softmax)
class Softmax(FunctionLayer):
    """exp(x) over its sum along the axis `dim`; None: axis 1 of 2 or more than 3 axes, else 0.

    >>> nn.Softmax(dim=1)(mg.input("x", (8, 10))).shape
    (8, 10)
    """

    dim: Axis | None = None

    def forward(self, x: Any) -> Node:
        x, axis = as_node(x), self.dim
        if axis is None:
            axis = 0 if x.ndim in (0, 1, 3) else 1
        return self.function(x, axis)


@layer_of(ops.log_softmax)
class LogSoftmax(Softmax):
    """The logarithm of `Softmax`, accurate for small values.

    >>> nn.LogSoftmax(dim=1)(mg.input("x", (8, 10))).shape
    (8, 10)
    """

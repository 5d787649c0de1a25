"""Activations as modules, as in `torch.nn`.

`inplace` is there for its arguments and changes nothing: where results lie in memory is the
compiler's work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from minigraph import ops
from minigraph.arguments import Axis, Count, checked
from minigraph.graph import Node, Parameter, as_node
from minigraph.nn.init import Weights, full
from minigraph.nn.module import Module


@dataclass(eq=False, repr=False)
class _InPlace(Module):
    """An activation without other arguments."""

    inplace: bool = False

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


@checked
@dataclass(eq=False, repr=False)
class ReLU(_InPlace):
    """0 where x is negative, else x.

    >>> nn.ReLU()(mg.input("x", (8, 16)))
    relu: float32[8,16]
    """

    def forward(self, x: Any) -> Node:
        return ops.relu(x)


@checked
@dataclass(eq=False, repr=False)
class Hardsigmoid(Module):
    """0 below -3, 1 above 3, x / 6 + 1 / 2 in between.

    >>> nn.Hardsigmoid()(mg.input("x", (8, 16))).shape
    (8, 16)
    """

    inplace: bool = False

    def forward(self, x: Any) -> Node:
        return ops.hardsigmoid(x)


@checked
@dataclass(eq=False, repr=False)
class Mish(_InPlace):
    """x * tanh(softplus(x)).

    >>> nn.Mish()(mg.input("x", (8, 16))).shape
    (8, 16)
    """

    def forward(self, x: Any) -> Node:
        return ops.mish(x)


@checked
@dataclass(eq=False, repr=False)
class Hardswish(Module):
    """0 below -3, x above 3, x * (x + 3) / 6 in between.

    >>> nn.Hardswish()(mg.input("x", (8, 16))).shape
    (8, 16)
    """

    inplace: bool = False

    def forward(self, x: Any) -> Node:
        return ops.hardswish(x)


@checked
@dataclass(eq=False, repr=False)
class ReLU6(_InPlace):
    """0 where x is negative, 6 where it is above 6, else x.

    >>> nn.ReLU6()(mg.input("x", (8, 16))).shape
    (8, 16)
    """

    def forward(self, x: Any) -> Node:
        return ops.relu6(x)


@checked
@dataclass(eq=False, repr=False)
class LeakyReLU(Module):
    """x where it is positive, else x * negative_slope.

    >>> nn.LeakyReLU(0.1)(mg.input("x", (8, 16))).shape
    (8, 16)
    """

    negative_slope: float = 0.01
    inplace: bool = False

    def forward(self, x: Any) -> Node:
        return ops.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}" + ", inplace=True" * self.inplace


@checked
@dataclass(eq=False, repr=False)
class ELU(Module):
    """x where it is positive, else alpha * (exp(x) - 1).

    >>> nn.ELU(alpha=0.5)(mg.input("x", (8, 16))).shape
    (8, 16)
    """

    alpha: float = 1.0
    inplace: bool = False

    def forward(self, x: Any) -> Node:
        return ops.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}" + ", inplace=True" * self.inplace


class PReLU(Module):
    """x where it is positive, else x * weight.

    num_parameters  how many weights are learnt: one, or one for each channel of (n, c, ...)
    init            where they start

    >>> nn.PReLU(num_parameters=16)(mg.input("x", (8, 16))).shape
    (8, 16)
    """

    @checked
    def __init__(
        self, num_parameters: Count = 1, init: float = 0.25, dtype: Weights = "float32"
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(full((num_parameters,), init, dtype))

    def forward(self, x: Any) -> Node:
        return ops.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


@checked
@dataclass(eq=False, repr=False)
class GELU(Module):
    """x times the normal distribution function of x.

    >>> nn.GELU()(mg.input("x", (8, 16))).shape
    (8, 16)
    """

    approximate: Literal["none", "tanh"] = "none"

    def forward(self, x: Any) -> Node:
        return ops.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


@checked
@dataclass(eq=False, repr=False)
class SiLU(_InPlace):
    """x * sigmoid(x).

    >>> nn.SiLU()(mg.input("x", (8, 16))).shape
    (8, 16)
    """

    def forward(self, x: Any) -> Node:
        return ops.silu(x)


@checked
@dataclass(eq=False, repr=False)
class Softplus(Module):
    """log(1 + exp(beta * x)) / beta.

    >>> nn.Softplus()(mg.input("x", (8, 16))).shape
    (8, 16)
    """

    beta: float = 1.0
    threshold: float = 20.0

    shown = "beta={beta}, threshold={threshold}"

    def forward(self, x: Any) -> Node:
        return ops.softplus(x, self.beta, self.threshold)


class Sigmoid(Module):
    """1 / (1 + exp(-x)).

    >>> nn.Sigmoid()(mg.input("x", (8, 16)))
    sigmoid: float32[8,16]
    """

    def forward(self, x: Any) -> Node:
        return ops.sigmoid(x)


class Tanh(Module):
    """The hyperbolic tangent.

    >>> nn.Tanh()(mg.input("x", (8, 16)))
    tanh: float32[8,16]
    """

    def forward(self, x: Any) -> Node:
        return ops.tanh(x)


@checked
@dataclass(eq=False, repr=False)
class Softmax(Module):
    """exp(x) over its sum along the axis `dim`; None: axis 1 of 2 or more than 3 axes, else 0.

    >>> nn.Softmax(dim=1)(mg.input("x", (8, 10))).shape
    (8, 10)
    """

    dim: Axis | None = None

    shown = "dim={dim}"

    def forward(self, x: Any) -> Node:
        return ops.softmax(x, _axis(self.dim, as_node(x)))


@checked
@dataclass(eq=False, repr=False)
class LogSoftmax(Module):
    """The logarithm of `Softmax`, accurate where that is small.

    >>> nn.LogSoftmax(dim=1)(mg.input("x", (8, 10))).shape
    (8, 10)
    """

    dim: Axis | None = None

    shown = "dim={dim}"

    def forward(self, x: Any) -> Node:
        return ops.log_softmax(x, _axis(self.dim, as_node(x)))


def _axis(dim: int | None, x: Node) -> int:
    if dim is None:
        return 0 if x.ndim in (0, 1, 3) else 1
    return dim

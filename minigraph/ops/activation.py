"""Activation functions, with the arguments of `torch.nn.functional`, and ops fused with one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph.errors import GraphError
from minigraph.graph import Array, Node, Op, Spec
from minigraph.ops.arithmetic import Maximum
from minigraph.ops.builder import builder
from minigraph.ops.comparison import where
from minigraph.ops.elementwise import Elementwise, promote
from minigraph.ops.exponential import Erf, Exp, Log1p
from minigraph.ops.trigonometric import Tanh


class Relu(Elementwise):
    """0 where x is negative, else x; NaN stays."""

    c = "({0} < 0 ? 0 : {0})"
    kinks = (0.0,)

    def forward(self, x: Array) -> Array:
        return np.where(x < 0, np.zeros_like(x, shape=()), x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (where(y <= 0, 0, dy),)


class LeakyRelu(Elementwise):
    """x where it is positive, else x * slope."""

    c = "({0} > 0 ? {0} : {0} * {1})"
    accepts = "f"
    kinks = (0.0,)

    def forward(self, x: Array, slope: Array) -> Array:
        return np.where(x > 0, x, x * slope)

    def grad(self, dy: Node, y: Node, x: Node, slope: Node) -> tuple[Node, Node]:
        positive = x > 0
        return where(positive, dy, dy * slope), where(positive, 0, dy * x)


class Hardswish(Elementwise):
    """0 below -3, x above 3, x * (x + 3) / 6 in between (Howard et al., 2019, MobileNetV3)."""

    c = "({0} <= -3 ? 0 : {0} < 3 ? {0} * ({0} + 3) / 6 : {0})"
    accepts = "f"
    kinks = (-3.0, 3.0)

    def forward(self, x: Array) -> Array:
        return np.where(x <= -3, np.zeros_like(x, shape=()), np.where(x < 3, x * (x + 3) / 6, x))

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (where(x <= -3, 0, where(x >= 3, dy, dy * (x / 3 + 0.5))),)


class Sigmoid(Elementwise):
    """1 / (1 + exp(-x))."""

    c = "1 / (1 + exp{f}(-{0}))"
    accepts = "f"
    costly = True

    def forward(self, x: Array) -> Array:
        return 1 / (1 + np.exp(-x))

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * (y * (1 - y)),)


class Activated(Op):
    """`activation`, which has one input, of the result of `first`; reports show the latter's name.

    The optimizer makes it of a convolution or a product and the activation that follows: as one op
    they are one step, and the value in between takes no memory.
    """

    first: Op
    activation: Elementwise

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.first.name)  # the class is frozen

    def infer(self, *xs: Spec) -> Spec:
        return self.activation.infer(self.first.infer(*xs))

    def forward(self, *xs: Array) -> Array:
        y: Array = self.activation.forward(self.first.forward(*xs))
        return y

    def expand(self, *xs: Node) -> tuple[Node]:
        return (self.activation(self.first(*xs)),)

    def __str__(self) -> str:
        return f"{self.first}+{self.activation}"


@builder
def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Node:
    """Return x where it is positive, else x * negative_slope."""
    return LeakyRelu()(*promote(x, negative_slope, floating=True))


@builder
def gelu(x: Any, approximate: str = "none") -> Node:
    """Return x times the normal distribution function of x (Hendrycks and Gimpel, 2016).

    approximate  "none": exact, by erf; "tanh": the paper's approximation
    """
    (x,) = promote(x, floating=True)
    if approximate == "none":
        return x * 0.5 * (1 + Erf.of(x * math.sqrt(0.5)))
    if approximate == "tanh":
        return x * 0.5 * (1 + Tanh.of(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    raise GraphError(f'approximate is "none" or "tanh", not {approximate!r}')


@builder
def silu(x: Any) -> Node:
    """Return x * sigmoid(x)."""
    (x,) = promote(x, floating=True)
    return x * Sigmoid.of(x)


@builder
def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Node:
    """Return log(1 + exp(beta * x)) / beta, and x where beta * x is above `threshold`."""
    (x,) = promote(x, floating=True)
    scaled = x * beta
    large = scaled > threshold
    return where(large, x, Log1p.of(Exp.of(where(large, 0, scaled))) / beta)


@builder
def logaddexp(x: Any, y: Any) -> Node:
    """Return log(exp(x) + exp(y)) without overflow."""
    x, y = promote(x, y, floating=True)
    distance = where(x == y, 0, abs(x - y))  # inf - inf is NaN
    return Maximum.of(x, y) + Log1p.of(Exp.of(-distance))

"""Activation functions, with the arguments of `torch.nn.functional`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigraph.errors import GraphError
from minigraph.graph import Array, Node
from minigraph.ops.arithmetic import abs, maximum
from minigraph.ops.builder import builder
from minigraph.ops.comparison import equal, greater, less_equal, where
from minigraph.ops.elementwise import Elementwise, elementwise, promote
from minigraph.ops.exponential import erf, exp, log1p
from minigraph.ops.trigonometric import tanh


@dataclass(frozen=True)
class Relu(Elementwise):
    """0 where x is negative, else x; NaN stays."""

    c = "({0} < 0 ? 0 : {0})"

    def forward(self, x: Array) -> Array:
        return np.where(x < 0, np.zeros_like(x, shape=()), x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (where(less_equal(y, 0), 0, dy),)


@dataclass(frozen=True)
class LeakyRelu(Elementwise):
    """x where it is positive, else x * slope."""

    c = "({0} > 0 ? {0} : {0} * {1})"
    accepts = "f"

    def forward(self, x: Array, slope: Array) -> Array:
        return np.where(x > 0, x, x * slope)

    def grad(self, dy: Node, y: Node, x: Node, slope: Node) -> tuple[Node, Node]:
        positive = greater(x, 0)
        return where(positive, dy, dy * slope), where(positive, 0, dy * x)


@dataclass(frozen=True)
class Sigmoid(Elementwise):
    """1 / (1 + exp(-x))."""

    c = "1 / (1 + exp{f}(-{0}))"
    accepts = "f"
    costly = True

    def forward(self, x: Array) -> Array:
        return 1 / (1 + np.exp(-x))

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * (y * (1 - y)),)


relu = elementwise(Relu())
sigmoid = elementwise(Sigmoid())


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
        return x * 0.5 * (1 + erf(x * math.sqrt(0.5)))
    if approximate == "tanh":
        return x * 0.5 * (1 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    raise GraphError(f'approximate is "none" or "tanh", not {approximate!r}')


@builder
def silu(x: Any) -> Node:
    """Return x * sigmoid(x)."""
    (x,) = promote(x, floating=True)
    return x * sigmoid(x)


@builder
def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Node:
    """Return log(1 + exp(beta * x)) / beta, and x where beta * x is above `threshold`."""
    (x,) = promote(x, floating=True)
    scaled = x * beta
    large = greater(scaled, threshold)
    return where(large, x, log1p(exp(where(large, 0, scaled))) / beta)


@builder
def logaddexp(x: Any, y: Any) -> Node:
    """Return log(exp(x) + exp(y)) without overflow."""
    x, y = promote(x, y, floating=True)
    distance = where(equal(x, y), 0, abs(x - y))  # inf - inf is NaN
    return maximum(x, y) + log1p(exp(-distance))

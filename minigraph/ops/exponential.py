"""Exponentials, logarithms and the error function."""

from __future__ import annotations

import math

import numpy as np

from minigraph.graph import Array, Node
from minigraph.ops.elementwise import MathFunction


class Exp(MathFunction):
    """e to the power x."""

    forward = np.exp

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * y,)


class Expm1(MathFunction):
    """exp(x) - 1, accurate near 0."""

    forward = np.expm1

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * Exp.of(x),)  # y + 1 would cancel far below 0


class Log(MathFunction):
    """The natural logarithm."""

    domain = (0.1, 4.0)
    forward = np.log

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / x,)


class Log1p(MathFunction):
    """log(1 + x), accurate near 0."""

    domain = (-0.5, 3.0)
    forward = np.log1p

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / (x + 1),)


class Log2(MathFunction):
    """The logarithm to base 2."""

    domain = (0.1, 4.0)
    forward = np.log2

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / (x * math.log(2)),)


class Log10(MathFunction):
    """The logarithm to base 10."""

    domain = (0.1, 4.0)
    forward = np.log10

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / (x * math.log(10)),)


class Erf(MathFunction):
    """The error function, 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to x."""

    def forward(self, x: Array) -> Array:
        return _erf(x.astype(np.float64)).astype(x.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * (Exp.of(-x * x) * (2 / math.sqrt(math.pi))),)


class Erfc(MathFunction):
    """1 - erf(x), accurate where that is near 0."""

    def forward(self, x: Array) -> Array:
        return _erfc(x.astype(np.float64)).astype(x.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * (Exp.of(-x * x) * (-2 / math.sqrt(math.pi))),)


_erf = np.vectorize(math.erf, otypes=[np.float64])  # NumPy has neither
_erfc = np.vectorize(math.erfc, otypes=[np.float64])

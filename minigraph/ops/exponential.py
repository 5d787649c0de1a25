"""Exponentials, logarithms and the error function."""

from __future__ import annotations

import math

import numpy as np

from minigraph.graph import Array, Node
from minigraph.ops.elementwise import MathFunction


class Exp(MathFunction):
    """e to the power x.

    >>> cg.compile([], ops.exp([0.0, 1.0]))()
    array([1.        , 2.71828183])
    """

    forward = np.exp

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * y,)


class Expm1(MathFunction):
    """exp(x) - 1, accurate near 0.

    >>> cg.compile([], ops.expm1([0.0, 1e-10]))()
    array([0.e+00, 1.e-10])
    """

    forward = np.expm1

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * Exp.of(x),)  # y + 1 would cancel far below 0


class Log(MathFunction):
    """The natural logarithm.

    >>> cg.compile([], ops.log([1.0, 10.0]))()
    array([0.        , 2.30258509])
    """

    domain = (0.1, 4.0)
    forward = np.log

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / x,)


class Log1p(MathFunction):
    """log(1 + x), accurate near 0.

    >>> cg.compile([], ops.log1p([0.0, 1e-10]))()
    array([0.e+00, 1.e-10])
    """

    domain = (-0.5, 3.0)
    forward = np.log1p

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / (x + 1),)


class Log2(MathFunction):
    """The logarithm to base 2.

    >>> cg.compile([], ops.log2([1.0, 8.0]))()
    array([0., 3.])
    """

    domain = (0.1, 4.0)
    forward = np.log2

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / (x * math.log(2)),)


class Log10(MathFunction):
    """The logarithm to base 10.

    >>> cg.compile([], ops.log10([1.0, 100.0]))()
    array([0., 2.])
    """

    domain = (0.1, 4.0)
    forward = np.log10

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / (x * math.log(10)),)


class Erf(MathFunction):
    """The error function, 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to x.

    >>> cg.compile([], ops.erf([0.0, 1.0]))()
    array([0.        , 0.84270079])
    """

    def forward(self, x: Array) -> Array:
        return _erf(x.astype(np.float64)).astype(x.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * (Exp.of(-x * x) * (2 / math.sqrt(math.pi))),)


class Erfc(MathFunction):
    """1 - erf(x), accurate where that is near 0.

    >>> cg.compile([], ops.erfc([0.0, 1.0]))()
    array([1.        , 0.15729921])
    """

    def forward(self, x: Array) -> Array:
        return _erfc(x.astype(np.float64)).astype(x.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * (Exp.of(-x * x) * (-2 / math.sqrt(math.pi))),)


_erf = np.vectorize(math.erf, otypes=[np.float64])  # NumPy has neither
_erfc = np.vectorize(math.erfc, otypes=[np.float64])

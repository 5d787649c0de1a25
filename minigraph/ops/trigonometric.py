"""Trigonometric and hyperbolic functions; angles are in radians."""

from __future__ import annotations

import numpy as np

from minigraph.graph import Node, gradients
from minigraph.ops.arithmetic import Rsqrt, Square
from minigraph.ops.comparison import where
from minigraph.ops.elementwise import MathFunction


class Sin(MathFunction):
    """The sine.

    >>> cg.compile([], ops.sin([0.0, 1.0]))()
    array([0.        , 0.84147098])
    """

    forward = np.sin
    grad = gradients(lambda dy, y, x: dy * Cos.of(x))


class Cos(MathFunction):
    """The cosine.

    >>> cg.compile([], ops.cos([0.0, 1.0]))()
    array([1.        , 0.54030231])
    """

    forward = np.cos
    grad = gradients(lambda dy, y, x: -dy * Sin.of(x))


class Tan(MathFunction):
    """The tangent.

    >>> cg.compile([], ops.tan([0.0, 1.0]))()
    array([0.        , 1.55740772])
    """

    domain = (-1.0, 1.0)
    forward = np.tan
    grad = gradients(lambda dy, y, x: dy * (1 + Square.of(y)))


class Asin(MathFunction):
    """The inverse sine.

    >>> cg.compile([], ops.asin([0.0, 1.0]))()
    array([0.        , 1.57079633])
    """

    domain = (-0.9, 0.9)
    forward = np.arcsin
    grad = gradients(lambda dy, y, x: dy * Rsqrt.of(1 - Square.of(x)))


class Acos(MathFunction):
    """The inverse cosine.

    >>> cg.compile([], ops.acos([0.0, 1.0]))()
    array([1.57079633, 0.        ])
    """

    domain = (-0.9, 0.9)
    forward = np.arccos
    grad = gradients(lambda dy, y, x: -dy * Rsqrt.of(1 - Square.of(x)))


class Atan(MathFunction):
    """The inverse tangent.

    >>> cg.compile([], ops.atan([0.0, 1.0]))()
    array([0.        , 0.78539816])
    """

    forward = np.arctan
    grad = gradients(lambda dy, y, x: dy / (1 + Square.of(x)))


class Sinh(MathFunction):
    """The hyperbolic sine.

    >>> cg.compile([], ops.sinh([0.0, 1.0]))()
    array([0.        , 1.17520119])
    """

    forward = np.sinh
    grad = gradients(lambda dy, y, x: dy * Cosh.of(x))


class Cosh(MathFunction):
    """The hyperbolic cosine.

    >>> cg.compile([], ops.cosh([0.0, 1.0]))()
    array([1.        , 1.54308063])
    """

    forward = np.cosh
    grad = gradients(lambda dy, y, x: dy * Sinh.of(x))


class Tanh(MathFunction):
    """The hyperbolic tangent.

    >>> cg.compile([], ops.tanh([0.0, 1.0]))()
    array([0.        , 0.76159416])
    """

    forward = np.tanh
    grad = gradients(lambda dy, y, x: dy * (1 - Square.of(y)))


class Asinh(MathFunction):
    """The inverse hyperbolic sine.

    >>> cg.compile([], ops.asinh([0.0, 1.0]))()
    array([0.        , 0.88137359])
    """

    forward = np.arcsinh
    grad = gradients(lambda dy, y, x: dy * Rsqrt.of(Square.of(x) + 1))


class Acosh(MathFunction):
    """The inverse hyperbolic cosine.

    >>> cg.compile([], ops.acosh([1.0, 2.0]))()
    array([0.       , 1.3169579])
    """

    domain = (1.2, 4.0)
    forward = np.arccosh
    grad = gradients(lambda dy, y, x: dy * Rsqrt.of(Square.of(x) - 1))


class Atanh(MathFunction):
    """The inverse hyperbolic tangent.

    >>> cg.compile([], ops.atanh([0.0, 0.5]))()
    array([0.        , 0.54930614])
    """

    domain = (-0.9, 0.9)
    forward = np.arctanh
    grad = gradients(lambda dy, y, x: dy / (1 - Square.of(x)))


class Atan2(MathFunction):
    """The angle of the point (x, y) seen from the origin, given y and x.

    >>> cg.compile([], ops.atan2([1.0, -1.0], 0.0))()
    array([ 1.57079633, -1.57079633])
    """

    operands = ("y", "x")
    domain = (0.3, 3.0)
    forward = np.arctan2

    def grad(self, dy: Node, angle: Node, y: Node, x: Node) -> tuple[Node, Node]:
        square = Square.of(x) + Square.of(y)
        part = dy / where(square == 0, 1, square)  # 0 at the origin, as PyTorch has it
        return part * x, -part * y

"""Trigonometric and hyperbolic functions; angles are in radians."""

from __future__ import annotations

from minigraph.graph import Node, gradients
from minigraph.ops.arithmetic import Rsqrt, Square
from minigraph.ops.comparison import where
from minigraph.ops.elementwise import MathFunction


class Sin(MathFunction):
    """The sine."""

    example = "[0.0, 1.0]", "array([0.        , 0.84147098])"
    grad = gradients(lambda dy, y, x: dy * Cos.of(x))


class Cos(MathFunction):
    """The cosine."""

    example = "[0.0, 1.0]", "array([1.        , 0.54030231])"
    grad = gradients(lambda dy, y, x: -dy * Sin.of(x))


class Tan(MathFunction):
    """The tangent."""

    example = "[0.0, 1.0]", "array([0.        , 1.55740772])"
    domain = (-1.0, 1.0)
    grad = gradients(lambda dy, y, x: dy * (1 + Square.of(y)))


class Asin(MathFunction):
    """The inverse sine."""

    example = "[0.0, 1.0]", "array([0.        , 1.57079633])"
    domain = (-0.9, 0.9)
    grad = gradients(lambda dy, y, x: dy * Rsqrt.of(1 - Square.of(x)))


class Acos(MathFunction):
    """The inverse cosine."""

    example = "[0.0, 1.0]", "array([1.57079633, 0.        ])"
    domain = (-0.9, 0.9)
    grad = gradients(lambda dy, y, x: -dy * Rsqrt.of(1 - Square.of(x)))


class Atan(MathFunction):
    """The inverse tangent."""

    example = "[0.0, 1.0]", "array([0.        , 0.78539816])"
    grad = gradients(lambda dy, y, x: dy / (1 + Square.of(x)))


class Sinh(MathFunction):
    """The hyperbolic sine."""

    example = "[0.0, 1.0]", "array([0.        , 1.17520119])"
    grad = gradients(lambda dy, y, x: dy * Cosh.of(x))


class Cosh(MathFunction):
    """The hyperbolic cosine."""

    example = "[0.0, 1.0]", "array([1.        , 1.54308063])"
    grad = gradients(lambda dy, y, x: dy * Sinh.of(x))


class Tanh(MathFunction):
    """The hyperbolic tangent."""

    example = "[0.0, 1.0]", "array([0.        , 0.76159416])"
    grad = gradients(lambda dy, y, x: dy * (1 - Square.of(y)))


class Asinh(MathFunction):
    """The inverse hyperbolic sine."""

    example = "[0.0, 1.0]", "array([0.        , 0.88137359])"
    grad = gradients(lambda dy, y, x: dy * Rsqrt.of(Square.of(x) + 1))


class Acosh(MathFunction):
    """The inverse hyperbolic cosine."""

    example = "[1.0, 2.0]", "array([0.       , 1.3169579])"
    domain = (1.2, 4.0)
    grad = gradients(lambda dy, y, x: dy * Rsqrt.of(Square.of(x) - 1))


class Atanh(MathFunction):
    """The inverse hyperbolic tangent."""

    example = "[0.0, 0.5]", "array([0.        , 0.54930614])"
    domain = (-0.9, 0.9)
    grad = gradients(lambda dy, y, x: dy / (1 - Square.of(x)))


class Atan2(MathFunction):
    """The angle of the point (x, y) seen from the origin, given y and x."""

    example = "[1.0, -1.0], 0.0", "array([ 1.57079633, -1.57079633])"
    operands = ("y", "x")
    domain = (0.3, 3.0)

    def grad(self, dy: Node, angle: Node, y: Node, x: Node) -> tuple[Node, Node]:
        square = Square.of(x) + Square.of(y)
        scaled = dy / where(square == 0, 1, square)  # 0 at the origin, as in PyTorch
        return scaled * x, -scaled * y

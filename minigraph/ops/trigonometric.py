"""Trigonometric and hyperbolic functions; angles are in radians."""

from __future__ import annotations

import numpy as np

from minigraph.graph import Node
from minigraph.ops.arithmetic import Rsqrt, Square
from minigraph.ops.elementwise import MathFunction


class Sin(MathFunction):
    """The sine."""

    forward = np.sin

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * Cos.of(x),)


class Cos(MathFunction):
    """The cosine."""

    forward = np.cos

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (-dy * Sin.of(x),)


class Tan(MathFunction):
    """The tangent."""

    domain = (-1.0, 1.0)
    forward = np.tan

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * (1 + Square.of(y)),)


class Asin(MathFunction):
    """The inverse sine."""

    domain = (-0.9, 0.9)
    forward = np.arcsin

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * Rsqrt.of(1 - Square.of(x)),)


class Acos(MathFunction):
    """The inverse cosine."""

    domain = (-0.9, 0.9)
    forward = np.arccos

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (-dy * Rsqrt.of(1 - Square.of(x)),)


class Atan(MathFunction):
    """The inverse tangent."""

    forward = np.arctan

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / (1 + Square.of(x)),)


class Sinh(MathFunction):
    """The hyperbolic sine."""

    forward = np.sinh

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * Cosh.of(x),)


class Cosh(MathFunction):
    """The hyperbolic cosine."""

    forward = np.cosh

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * Sinh.of(x),)


class Tanh(MathFunction):
    """The hyperbolic tangent."""

    forward = np.tanh

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * (1 - Square.of(y)),)


class Asinh(MathFunction):
    """The inverse hyperbolic sine."""

    forward = np.arcsinh

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * Rsqrt.of(Square.of(x) + 1),)


class Acosh(MathFunction):
    """The inverse hyperbolic cosine."""

    domain = (1.2, 4.0)
    forward = np.arccosh

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * Rsqrt.of(Square.of(x) - 1),)


class Atanh(MathFunction):
    """The inverse hyperbolic tangent."""

    domain = (-0.9, 0.9)
    forward = np.arctanh

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / (1 - Square.of(x)),)


class Atan2(MathFunction):
    """The angle of the point (x, y) seen from the origin, given y and x."""

    operands = ("y", "x")
    domain = (0.3, 3.0)
    forward = np.arctan2

    def grad(self, dy: Node, angle: Node, y: Node, x: Node) -> tuple[Node, Node]:
        part = dy / (Square.of(x) + Square.of(y))
        return part * x, -part * y

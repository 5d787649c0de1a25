"""Powers, exponentials, logarithms and the error function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minigraph.graph import Array, Constant, DType, Node, Operand, builder, gradients
from minigraph.ops.comparison import where
from minigraph.ops.elementwise import (
    Elementwise,
    MathFunction,
    broadcast_shapes,
    kind,
    promote,
    widen,
)
from minigraph.ops.shape import broadcast_to


class Exp(MathFunction):
    """e to the power x."""

    example = "[0.0, 1.0]", "array([1.        , 2.71828183])"
    grad = gradients(lambda dy, y, x: dy * y)


class Expm1(MathFunction):
    """exp(x) - 1, accurate near 0."""

    example = "[0.0, 1e-10]", "array([0.e+00, 1.e-10])"
    grad = gradients(lambda dy, y, x: dy * Exp.of(x))  # y + 1 would cancel far below 0


class Log(MathFunction):
    """The natural logarithm."""

    example = "[1.0, 10.0]", "array([0.        , 2.30258509])"
    domain = (0.1, 4.0)
    grad = gradients(lambda dy, y, x: dy / x)


class Log1p(MathFunction):
    """log(1 + x), accurate near 0."""

    example = "[0.0, 1e-10]", "array([0.e+00, 1.e-10])"
    domain = (-0.5, 3.0)
    grad = gradients(lambda dy, y, x: dy / (x + 1))


class Log2(MathFunction):
    """The logarithm to base 2."""

    example = "[1.0, 8.0]", "array([0., 3.])"
    domain = (0.1, 4.0)
    grad = gradients(lambda dy, y, x: dy / (x * math.log(2)))


class Log10(MathFunction):
    """The logarithm to base 10."""

    example = "[1.0, 100.0]", "array([0., 2.])"
    domain = (0.1, 4.0)
    grad = gradients(lambda dy, y, x: dy / (x * math.log(10)))


class Erf(MathFunction):
    """The error function, 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to x."""

    example = "[0.0, 1.0]", "array([0.        , 0.84270079])"
    grad = gradients(lambda dy, y, x: dy * (Exp.of(-x * x) * (2 / math.sqrt(math.pi))))

    def forward(self, x: Array) -> Array:
        return _erf(x.astype(np.float64)).astype(x.dtype)


class Erfc(MathFunction):
    """1 - erf(x), accurate near 0."""

    example = "[0.0, 1.0]", "array([1.        , 0.15729921])"
    grad = gradients(lambda dy, y, x: dy * (Exp.of(-x * x) * (-2 / math.sqrt(math.pi))))

    def forward(self, x: Array) -> Array:
        return _erfc(x.astype(np.float64)).astype(x.dtype)


_erf = np.vectorize(math.erf, otypes=[np.float64])  # NumPy has neither
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


# ---------------------------------------------------------------- powers


def _root(x: Array) -> Array:
    """The power 0.5, which is inf of -inf and 0.0 of -0.0."""
    return np.where(x == -np.inf, x.dtype.type(np.inf), np.sqrt(x + 0))


_ROOT = "({0} == -INFINITY ? INFINITY : sqrt{f}({0} + 0))"

# By exponent, a float's power as products and roots: in C, and of arrays, with the same bits.
# Integer exponents make products of expressions, too.
PRODUCTS: dict[float, tuple[str, Callable[[Any], Any]]] = {
    -2.0: ("(1 / {0}) * (1 / {0})", lambda x: (1 / x) * (1 / x)),
    -1.0: ("1 / {0}", lambda x: 1 / x),
    -0.5: (f"1 / {_ROOT}", lambda x: 1 / _root(x)),
    0.5: (_ROOT, _root),
    1.0: ("{0}", lambda x: x),
    2.0: ("{0} * {0}", lambda x: x * x),
    3.0: ("{0} * {0} * {0}", lambda x: x * x * x),
    4.0: ("({0} * {0}) * ({0} * {0})", lambda x: (x * x) * (x * x)),
}


class Pow(Elementwise):
    """x to the power y; of integers, a negative y gives 1 / x truncated (NumPy raises)."""

    c = "pow{f}({0}, {1})"
    c_int = "mg_pow_{T}({0}, {1})"
    support_int = """
static inline {T} mg_pow_{T}({T} x, {T} y) {{
  if (y < 0) return x == 1 ? 1 : x + 1 == 0 ? (y % 2 == 0 ? 1 : -1) : 0;
  {T} z = 1;
  for (; y > 0; y /= 2, x *= x)
    if (y % 2 != 0) z *= x;
  return z;
}}"""
    domain = (0.3, 2.0)
    costly = True

    def forward(self, x: Array, y: Array) -> Array:
        if kind(x.dtype) == "f":
            # For a broadcast exponent NumPy takes a square root, which differs at -0 and -inf.
            differs = (y == 0.5) & ((x == 0) | (x == -np.inf))
            return np.power(np.where(differs, np.abs(x), x), y)
        if kind(x.dtype) == "u":
            return np.power(x, y)
        unit = np.where(y % 2 == 0, 1, x)
        inverse = np.where(np.abs(x) == 1, unit, 0)
        return np.where(y < 0, inverse, np.power(x, np.maximum(y, 0))).astype(x.dtype)

    def grad(self, dy: Node, z: Node, x: Node, y: Node) -> tuple[Node, Node]:
        zero = (x == 0) & (y >= 0)
        slope = where(zero, 0, z * Log.of(where(zero, 1, x)))
        if isinstance(y.op, Constant) and y.op.value.size == 1:
            exponent = y.op.value.item()
            return dy * (exponent * x ** (exponent - 1)) if exponent else dy * 0, dy * slope
        return dy * where(y == 0, 0, y * x ** (y - 1)), dy * slope


class ConstantPow(Elementwise):
    """x to a power that is one of PRODUCTS."""

    exponent: float

    name = "pow"
    accepts = "f"
    domain = (0.3, 2.0)
    costly = True

    def template(self, dtype: DType) -> str:
        return PRODUCTS[self.exponent][0]

    def forward(self, x: Array) -> Array:
        y: Array = PRODUCTS[self.exponent][1](widen(x))
        return y.astype(x.dtype)

    def grad(self, dy: Node, z: Node, x: Node) -> tuple[Node]:
        return (dy * (self.exponent * x ** (self.exponent - 1)),)


@builder
def pow(x: Operand, y: Operand) -> Node:
    """Return x to the power y; of integers, a negative y gives 1 / x truncated (NumPy raises).

    The powers -2, -1, 1, 2, 3, 4, 0.5 and -0.5 of floats are products and roots.

    >>> cg.compile([], ops.pow([2.0, 3.0], 2))()
    array([4., 9.])
    """
    is_value = not isinstance(y, Node)  # a node may need a gradient
    x, y = promote(x, y)
    if is_value and isinstance(y.op, Constant) and y.size and kind(x.dtype) == "f":
        exponent = float(y.op.value.flat[0])
        if exponent in PRODUCTS and (y.op.value == exponent).all():
            return broadcast_to(ConstantPow(exponent)(x), broadcast_shapes(x.shape, y.shape))
    return Pow()(x, y)

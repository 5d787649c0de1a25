"""Multiply-adds: one kernel for products and their sum, which the optimizer makes of them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from minigraph.graph import Array, DType, Node, Operand, builder
from minigraph.ops.elementwise import Elementwise, kind, promote

Sign = Literal["+", "-"]


class MultiplyAdd(Elementwise):
    """a * b + c, where the signs of the product and of c may be "-"."""

    product: Sign = "+"
    addend: Sign = "+"

    def grad(self, dy: Node, y: Node, a: Node, b: Node, c: Node) -> tuple[Node, Node, Node]:
        dp = _signed(self.product, dy)
        return dp * b, dp * a, _signed(self.addend, dy)


class Fma3(MultiplyAdd):
    """a * b + c, whose product and sum are rounded, as those of two ops are."""

    c = "{op.product}{round}({0} * {1}) {op.addend} {2}"

    def forward(self, a: Array, b: Array, c: Array) -> Array:
        return _sum(self.product, a * b, self.addend, c)


class Fma4(Elementwise):
    """a * b + c * d, whose products and sum are rounded; either product's sign may be "-"."""

    first: Sign = "+"
    second: Sign = "+"

    c = "{op.first}{round}({0} * {1}) {op.second} {round}({2} * {3})"

    def forward(self, a: Array, b: Array, c: Array, d: Array) -> Array:
        return _sum(self.first, a * b, self.second, c * d)

    def grad(
        self, dy: Node, y: Node, a: Node, b: Node, c: Node, d: Node
    ) -> tuple[Node, Node, Node, Node]:
        df, ds = _signed(self.first, dy), _signed(self.second, dy)
        return df * b, df * a, ds * d, ds * c


class Fma(MultiplyAdd):
    """a * b + c, rounded once: fusedMultiplyAdd of IEEE 754."""

    c = "fma{f}({op.product}{0}, {1}, {op.addend}{2})"
    c_int = Fma3.c

    def has_bits_of_numpy(self, dtype: DType) -> bool:
        return kind(dtype) != "f"  # NumPy rounds a second time

    def forward(self, a: Array, b: Array, c: Array) -> Array:
        if kind(a.dtype) != "f" or a.dtype == np.float64:
            return _sum(self.product, a * b, self.addend, c)
        # In float64 the product of two narrower floats is exact.
        a, b, wide = a.astype(np.float64), b.astype(np.float64), c.astype(np.float64)
        return _sum(self.product, a * b, self.addend, wide).astype(c.dtype)


def _sum(first: Sign, x: Array, second: Sign, y: Array) -> Array:
    x = x if first == "+" else -x
    return np.asarray(x + y if second == "+" else x - y)


def _signed(sign: Sign, x: Node) -> Node:
    return x if sign == "+" else -x


@builder
def fma(a: Operand, b: Operand, c: Operand) -> Node:
    """Return a * b + c, rounded once.

    >>> cg.compile([], ops.fma([1.0, 2.0], 3.0, 1.0))()
    array([4., 7.])
    """
    return Fma()(*promote(a, b, c))

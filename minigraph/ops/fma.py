"""Products added up and rounded once, which the optimizer makes of products and sums."""

from __future__ import annotations

from typing import Literal

import numpy as np

from minigraph.graph import Array, Node, Operand, builder
from minigraph.ops.elementwise import Elementwise, kind, promote


class Fma3(Elementwise):
    """a * b + c, rounded once, where the signs of the product and of c may be "-"."""

    product: Literal["+", "-"] = "+"
    addend: Literal["+", "-"] = "+"

    c = "fma{f}({op.product}{0}, {1}, {op.addend}{2})"
    c_int = "{op.product}{0} * {1} {op.addend} {2}"

    def forward(self, a: Array, b: Array, c: Array) -> Array:
        return _fused(self.product, a, b, self.addend, c)

    def grad(self, dy: Node, y: Node, a: Node, b: Node, c: Node) -> tuple[Node, Node, Node]:
        dp = _signed(self.product, dy)
        return dp * b, dp * a, _signed(self.addend, dy)


class Fma4(Elementwise):
    """a * b + c * d, where c * d is rounded and the sum once; either product's sign may be "-"."""

    first: Literal["+", "-"] = "+"
    second: Literal["+", "-"] = "+"

    c = "fma{f}({op.first}{0}, {1}, {op.second}({2} * {3}))"
    c_int = "{op.first}{0} * {1} {op.second} {2} * {3}"

    def forward(self, a: Array, b: Array, c: Array, d: Array) -> Array:
        if kind(c.dtype) == "f" and c.dtype.itemsize == 2:  # computed with in float32
            c, d = c.astype(np.float32), d.astype(np.float32)
        return _fused(self.first, a, b, self.second, c * d)

    def grad(
        self, dy: Node, y: Node, a: Node, b: Node, c: Node, d: Node
    ) -> tuple[Node, Node, Node, Node]:
        df, ds = _signed(self.first, dy), _signed(self.second, dy)
        return df * b, df * a, ds * d, ds * c


def _fused(first: str, a: Array, b: Array, second: str, c: Array) -> Array:
    """±a * b ± c; of floats that NumPy has a wider type than, the product is exact."""
    dtype = a.dtype
    if kind(dtype) == "f" and dtype != np.float64:
        a, b, c = a.astype(np.float64), b.astype(np.float64), c.astype(np.float64)
    product = a * b if first == "+" else -(a * b)
    total = product + c if second == "+" else product - c
    return total.astype(dtype, copy=False)


def _signed(sign: str, x: Node) -> Node:
    return x if sign == "+" else -x


@builder
def fma(a: Operand, b: Operand, c: Operand) -> Node:
    """Return a * b + c, rounded once (the op "fma3").

    >>> cg.compile([], ops.fma([1.0, 2.0], 3.0, 1.0))()
    array([4., 7.])
    """
    return Fma3()(*promote(a, b, c))

"""Multiply-adds: ops that the optimizer fuses from products and their sum."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from minigraph.graph import Array, DType, Node, Operand, builder
from minigraph.ops.elementwise import Elementwise, kind, promote

Sign = Literal["+", "-"]


class Fma3(Elementwise):
    """a * b + c, whose product and sum are rounded, as those of two ops are.

    The signs of the product and of c may be "-".
    """

    product: Sign = "+"
    addend: Sign = "+"

    c = "{op.product}{round}({0} * {1}) {op.addend} {2}"

    def forward(self, a: Any, b: Any, c: Any) -> Any:
        return _sum(self.product, a * b, self.addend, c)

    def expand(self, *xs: Node) -> tuple[Node]:
        return (self.forward(*xs),)


class Fma4(Elementwise):
    """a * b + c * d, whose products and sum are rounded; either product's sign may be "-"."""

    first: Sign = "+"
    second: Sign = "+"

    c = "{op.first}{round}({0} * {1}) {op.second} {round}({2} * {3})"

    def forward(self, a: Any, b: Any, c: Any, d: Any) -> Any:
        return _sum(self.first, a * b, self.second, c * d)

    def expand(self, *xs: Node) -> tuple[Node]:
        return (self.forward(*xs),)


class Fma(Elementwise):
    """As Fma3, but rounded once: fusedMultiplyAdd of IEEE 754."""

    product: Sign = "+"
    addend: Sign = "+"

    c = "fma{f}({op.product}{0}, {1}, {op.addend}{2})"
    c_int = Fma3.c

    def has_bits_of_numpy(self, dtype: DType) -> bool:
        return kind(dtype) != "f"  # NumPy rounds a second time

    def forward(self, a: Array, b: Array, c: Array) -> Array:
        # In float64 the product of two narrower floats is exact.
        wide = (x.astype(np.float64 if kind(x.dtype) == "f" else x.dtype) for x in (a, b, c))
        return Fma3(self.product, self.addend).forward(*wide).astype(c.dtype)

    def expand(self, *xs: Node) -> tuple[Node]:
        return Fma3(self.product, self.addend).expand(*xs)


def _sum(first: Sign, x: Any, second: Sign, y: Any) -> Any:
    x = x if first == "+" else -x
    return x + y if second == "+" else x - y


@builder
def fma(a: Operand, b: Operand, c: Operand) -> Node:
    """Return a * b + c, rounded once.

    >>> cg.compile([], ops.fma([1.0, 2.0], 3.0, 1.0))()
    array([4., 7.])
    """
    return Fma()(*promote(a, b, c))

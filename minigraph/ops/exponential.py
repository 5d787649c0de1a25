"""Exponentials, logarithms and the error function."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minigraph.graph import Array, Node
from minigraph.ops.elementwise import Elementwise, elementwise


@dataclass(frozen=True)
class Exp(Elementwise):
    """e to the power x."""

    c = "exp{f}({0})"
    accepts = "f"
    costly = True

    def forward(self, x: Array) -> Array:
        return np.exp(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * y,)


@dataclass(frozen=True)
class Expm1(Elementwise):
    """exp(x) - 1, accurate near 0."""

    c = "expm1{f}({0})"
    accepts = "f"
    costly = True

    def forward(self, x: Array) -> Array:
        return np.expm1(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * (y + 1),)


@dataclass(frozen=True)
class Log(Elementwise):
    """The natural logarithm."""

    c = "log{f}({0})"
    accepts = "f"
    domain = (0.1, 4.0)
    costly = True

    def forward(self, x: Array) -> Array:
        return np.log(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / x,)


@dataclass(frozen=True)
class Log1p(Elementwise):
    """log(1 + x), accurate near 0."""

    c = "log1p{f}({0})"
    accepts = "f"
    domain = (-0.5, 3.0)
    costly = True

    def forward(self, x: Array) -> Array:
        return np.log1p(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / (x + 1),)


@dataclass(frozen=True)
class Log2(Elementwise):
    """The logarithm to base 2."""

    c = "log2{f}({0})"
    accepts = "f"
    domain = (0.1, 4.0)
    costly = True

    def forward(self, x: Array) -> Array:
        return np.log2(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / (x * math.log(2)),)


@dataclass(frozen=True)
class Log10(Elementwise):
    """The logarithm to base 10."""

    c = "log10{f}({0})"
    accepts = "f"
    domain = (0.1, 4.0)
    costly = True

    def forward(self, x: Array) -> Array:
        return np.log10(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / (x * math.log(10)),)


@dataclass(frozen=True)
class Erf(Elementwise):
    """The error function, 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to x."""

    c = "erf{f}({0})"
    accepts = "f"
    costly = True

    def forward(self, x: Array) -> Array:
        return _erf(x.astype(np.float64)).astype(x.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * (exp(-x * x) * (2 / math.sqrt(math.pi))),)


_erf = np.vectorize(math.erf, otypes=[np.float64])  # NumPy has none

exp = elementwise(Exp())
expm1 = elementwise(Expm1())
log = elementwise(Log())
log1p = elementwise(Log1p())
log2 = elementwise(Log2())
log10 = elementwise(Log10())
erf = elementwise(Erf())

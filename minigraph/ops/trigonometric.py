"""Trigonometric and hyperbolic functions; angles are in radians."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minigraph.graph import Array, Node
from minigraph.ops.arithmetic import rsqrt, square
from minigraph.ops.elementwise import Elementwise, elementwise


@dataclass(frozen=True)
class Sin(Elementwise):
    """The sine."""

    c = "sin{f}({0})"
    accepts = "f"
    costly = True

    def forward(self, x: Array) -> Array:
        return np.sin(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * cos(x),)


@dataclass(frozen=True)
class Cos(Elementwise):
    """The cosine."""

    c = "cos{f}({0})"
    accepts = "f"
    costly = True

    def forward(self, x: Array) -> Array:
        return np.cos(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (-dy * sin(x),)


@dataclass(frozen=True)
class Tan(Elementwise):
    """The tangent."""

    c = "tan{f}({0})"
    accepts = "f"
    domain = (-1.0, 1.0)
    costly = True

    def forward(self, x: Array) -> Array:
        return np.tan(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * (1 + square(y)),)


@dataclass(frozen=True)
class Asin(Elementwise):
    """The inverse sine."""

    c = "asin{f}({0})"
    accepts = "f"
    domain = (-0.9, 0.9)
    costly = True

    def forward(self, x: Array) -> Array:
        return np.arcsin(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * rsqrt(1 - square(x)),)


@dataclass(frozen=True)
class Acos(Elementwise):
    """The inverse cosine."""

    c = "acos{f}({0})"
    accepts = "f"
    domain = (-0.9, 0.9)
    costly = True

    def forward(self, x: Array) -> Array:
        return np.arccos(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (-dy * rsqrt(1 - square(x)),)


@dataclass(frozen=True)
class Atan(Elementwise):
    """The inverse tangent."""

    c = "atan{f}({0})"
    accepts = "f"
    costly = True

    def forward(self, x: Array) -> Array:
        return np.arctan(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / (1 + square(x)),)


@dataclass(frozen=True)
class Sinh(Elementwise):
    """The hyperbolic sine."""

    c = "sinh{f}({0})"
    accepts = "f"
    costly = True

    def forward(self, x: Array) -> Array:
        return np.sinh(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * cosh(x),)


@dataclass(frozen=True)
class Cosh(Elementwise):
    """The hyperbolic cosine."""

    c = "cosh{f}({0})"
    accepts = "f"
    costly = True

    def forward(self, x: Array) -> Array:
        return np.cosh(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * sinh(x),)


@dataclass(frozen=True)
class Tanh(Elementwise):
    """The hyperbolic tangent."""

    c = "tanh{f}({0})"
    accepts = "f"
    costly = True

    def forward(self, x: Array) -> Array:
        return np.tanh(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * (1 - square(y)),)


@dataclass(frozen=True)
class Asinh(Elementwise):
    """The inverse hyperbolic sine."""

    c = "asinh{f}({0})"
    accepts = "f"
    costly = True

    def forward(self, x: Array) -> Array:
        return np.arcsinh(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * rsqrt(square(x) + 1),)


@dataclass(frozen=True)
class Acosh(Elementwise):
    """The inverse hyperbolic cosine."""

    c = "acosh{f}({0})"
    accepts = "f"
    domain = (1.2, 4.0)
    costly = True

    def forward(self, x: Array) -> Array:
        return np.arccosh(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy * rsqrt(square(x) - 1),)


@dataclass(frozen=True)
class Atanh(Elementwise):
    """The inverse hyperbolic tangent."""

    c = "atanh{f}({0})"
    accepts = "f"
    domain = (-0.9, 0.9)
    costly = True

    def forward(self, x: Array) -> Array:
        return np.arctanh(x)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy / (1 - square(x)),)


@dataclass(frozen=True)
class Atan2(Elementwise):
    """The angle of the point (x, y) seen from the origin, given y and x."""

    c = "atan2{f}({0}, {1})"
    accepts = "f"
    domain = (0.3, 3.0)
    costly = True

    def forward(self, y: Array, x: Array) -> Array:
        return np.arctan2(y, x)

    def grad(self, dy: Node, angle: Node, y: Node, x: Node) -> tuple[Node, Node]:
        part = dy / (square(x) + square(y))
        return part * x, -part * y


sin = elementwise(Sin())
cos = elementwise(Cos())
tan = elementwise(Tan())
asin = elementwise(Asin())
acos = elementwise(Acos())
atan = elementwise(Atan())
sinh = elementwise(Sinh())
cosh = elementwise(Cosh())
tanh = elementwise(Tanh())
asinh = elementwise(Asinh())
acosh = elementwise(Acosh())
atanh = elementwise(Atanh())
atan2 = elementwise(Atan2())

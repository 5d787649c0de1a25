"""Comparisons, logic and choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minigraph.errors import DTypeError
from minigraph.graph import BOOL, Array, Node, Spec, as_node
from minigraph.ops.builder import builder
from minigraph.ops.elementwise import Elementwise, broadcast_shapes, elementwise, promote


class Comparison(Elementwise):
    """An elementwise op that says yes or no."""

    accepts = "fiub"
    result = BOOL

    def grad(self, dy: Node, y: Node, *xs: Node) -> tuple[None, ...]:
        return (None,) * len(xs)


class Bitwise(Elementwise):
    """An elementwise op on the bits of integers, or on bools."""

    accepts = "iub"

    def grad(self, dy: Node, y: Node, *xs: Node) -> tuple[None, ...]:
        return (None,) * len(xs)


@dataclass(frozen=True)
class Equal(Comparison):
    """x == y."""

    c = "{0} == {1}"
    commutative = True

    def forward(self, x: Array, y: Array) -> Array:
        return np.equal(x, y)


@dataclass(frozen=True)
class NotEqual(Comparison):
    """x != y."""

    c = "{0} != {1}"
    commutative = True

    def forward(self, x: Array, y: Array) -> Array:
        return np.not_equal(x, y)


@dataclass(frozen=True)
class Less(Comparison):
    """x < y."""

    c = "{0} < {1}"

    def forward(self, x: Array, y: Array) -> Array:
        return np.less(x, y)


@dataclass(frozen=True)
class LessEqual(Comparison):
    """x <= y."""

    c = "{0} <= {1}"

    def forward(self, x: Array, y: Array) -> Array:
        return np.less_equal(x, y)


@dataclass(frozen=True)
class Greater(Comparison):
    """x > y."""

    c = "{0} > {1}"

    def forward(self, x: Array, y: Array) -> Array:
        return np.greater(x, y)


@dataclass(frozen=True)
class GreaterEqual(Comparison):
    """x >= y."""

    c = "{0} >= {1}"

    def forward(self, x: Array, y: Array) -> Array:
        return np.greater_equal(x, y)


@dataclass(frozen=True)
class LogicalAnd(Comparison):
    """Whether both are true; numbers are true where they are not 0."""

    c = "({0} != 0) & ({1} != 0)"
    commutative = True

    def forward(self, x: Array, y: Array) -> Array:
        return np.logical_and(x, y)


@dataclass(frozen=True)
class LogicalOr(Comparison):
    """Whether one is true; numbers are true where they are not 0."""

    c = "({0} != 0) | ({1} != 0)"
    commutative = True

    def forward(self, x: Array, y: Array) -> Array:
        return np.logical_or(x, y)


@dataclass(frozen=True)
class LogicalXor(Comparison):
    """Whether exactly one is true; numbers are true where they are not 0."""

    c = "({0} != 0) != ({1} != 0)"
    commutative = True

    def forward(self, x: Array, y: Array) -> Array:
        return np.logical_xor(x, y)


@dataclass(frozen=True)
class LogicalNot(Comparison):
    """Whether x is false, that is 0."""

    c = "{0} == 0"

    def forward(self, x: Array) -> Array:
        return np.logical_not(x)


@dataclass(frozen=True)
class Isnan(Comparison):
    """Whether x is not a number."""

    c = "{0} != {0}"

    def forward(self, x: Array) -> Array:
        return np.isnan(x)


@dataclass(frozen=True)
class Isinf(Comparison):
    """Whether x is an infinity."""

    c = "({0} - {0} != {0} - {0}) & ({0} == {0})"
    c_int = "({0}, 0)"

    def forward(self, x: Array) -> Array:
        return np.isinf(x)


@dataclass(frozen=True)
class Isfinite(Comparison):
    """Whether x is neither infinite nor NaN."""

    c = "{0} - {0} == {0} - {0}"

    def forward(self, x: Array) -> Array:
        return np.isfinite(x)


@dataclass(frozen=True)
class BitwiseAnd(Bitwise):
    """x & y."""

    c = "{0} & {1}"
    commutative = True

    def forward(self, x: Array, y: Array) -> Array:
        return np.bitwise_and(x, y)


@dataclass(frozen=True)
class BitwiseOr(Bitwise):
    """x | y."""

    c = "{0} | {1}"
    commutative = True

    def forward(self, x: Array, y: Array) -> Array:
        return np.bitwise_or(x, y)


@dataclass(frozen=True)
class BitwiseXor(Bitwise):
    """x ^ y."""

    c = "{0} ^ {1}"
    commutative = True

    def forward(self, x: Array, y: Array) -> Array:
        return np.bitwise_xor(x, y)


@dataclass(frozen=True)
class BitwiseInvert(Bitwise):
    """~x."""

    c = "({T})~{0}"
    c_bool = "!{0}"

    def forward(self, x: Array) -> Array:
        return np.invert(x)


@dataclass(frozen=True)
class Where(Elementwise):
    """x where the condition holds, else y."""

    c = "({0} ? {1} : {2})"
    accepts = "fiub"

    def infer(self, condition: Spec, x: Spec, y: Spec) -> Spec:
        if condition.dtype != BOOL:
            raise DTypeError(f"the condition has dtype {condition.dtype.name}, not bool")
        if x.dtype != y.dtype:
            raise DTypeError(f"the choices have dtypes {x.dtype.name} and {y.dtype.name}")
        return Spec(broadcast_shapes(condition.shape, x.shape, y.shape), x.dtype)

    def forward(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, x, y)

    def grad(self, dy: Node, z: Node, condition: Node, x: Node, y: Node) -> Any:
        return None, where(condition, dy, 0), where(condition, 0, dy)


equal = elementwise(Equal())
not_equal = elementwise(NotEqual())
less = elementwise(Less())
less_equal = elementwise(LessEqual())
greater = elementwise(Greater())
greater_equal = elementwise(GreaterEqual())
logical_and = elementwise(LogicalAnd())
logical_or = elementwise(LogicalOr())
logical_xor = elementwise(LogicalXor())
logical_not = elementwise(LogicalNot())
isnan = elementwise(Isnan())
isinf = elementwise(Isinf())
isfinite = elementwise(Isfinite())
bitwise_and = elementwise(BitwiseAnd())
bitwise_or = elementwise(BitwiseOr())
bitwise_xor = elementwise(BitwiseXor())
bitwise_invert = elementwise(BitwiseInvert())


@builder
def where(condition: Any, x: Any, y: Any) -> Node:
    """Return x where the bool `condition` holds, else y; all three broadcast."""
    return Where()(as_node(condition), *promote(x, y))

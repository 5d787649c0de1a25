"""The arithmetic of an optimizer: pure functions of expressions, as in optax."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

import numpy as np

from minigraph.arguments import NUMBER, Kind
from minigraph.errors import GraphError
from minigraph.graph import Array, DType, Node, Spec

State = Mapping[str, Node]
Coefficients = tuple[Node | float, ...]
Update = tuple[Node, dict[str, Node]]  # the new value and the new state of a parameter


def _pair(value: Any) -> tuple[float, float]:
    first, second = map(NUMBER.parse, value)
    return first, second


Betas = Annotated[tuple[float, float], Kind("a pair of numbers", _pair)]


@dataclass(frozen=True)
class UpdateRule(ABC):
    """The update rule of a parameter.  The fields are the hyperparameters, without `lr`.

    Numbers are 0 or above, those of a pair below 1 too; only `signed` ones may be negative.
    """

    signed: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        for name, value in self.hyperparameters.items():
            if isinstance(value, tuple):
                for i, number in enumerate(value):
                    within(f"{name}[{i}]", number, high=1)
            else:
                within(name, value, low=-math.inf if name in self.signed else 0)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @abstractmethod
    def init(self, p: Spec) -> dict[str, Array]:
        """Return the state of a parameter before the first step, by name.

        A rule that depends on the number of steps has a `step`, which the optimizer counts.
        """

    @abstractmethod
    def coefficients(self, lr: Node, steps: Node | None) -> Coefficients:
        """Return the numbers that `update` takes, for parameters with the same hyperparameters.

        They are float64, like torch's Python floats, and are computed once for all parameters.

        steps  how many steps each of n parameters has done, (n,); None if the state has no `step`.
               A coefficient that depends on them is (n,), too
        """

    @abstractmethod
    def update(self, p: Node, g: Node, state: State, coefficients: Sequence[Node]) -> Update:
        """Return the new value and the new state, without `step`, of a parameter p of gradient g.

        coefficients  scalars of g's dtype, which p has, too
        """


STEP = np.array(0, np.int64)  # the first value of a `step`


def filled(p: Spec, value: float = 0.0) -> Array:
    """Return the first value of a state that is like p; it takes no memory."""
    return np.broadcast_to(np.array(value, accumulator(p.dtype)), p.shape)


def accumulator(dtype: DType) -> DType:
    """Return the dtype in which numbers of a dtype are summed: at least float32."""
    return np.promote_types(dtype, np.float32)


def within(what: str, number: float, low: float = 0, high: float = math.inf) -> float:
    """Return `number`; a GraphError that names `what` if it is not in [low, high)."""
    if not low <= number < high:
        raise GraphError(f"{what} is {number!r}; it takes a number in [{low:g}, {high:g})")
    return number

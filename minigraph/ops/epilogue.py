"""An op with the activation that follows it: what the optimizer makes of convolutions and products.

Users write the two ops.  As one they are one step, and the value in between has no memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.graph import Array, Node, Op, Spec
from minigraph.ops.elementwise import Elementwise


@dataclass(frozen=True)
class Activated(Op):
    """`activation`, which has one input, of the result of `first`; reports call it `first`."""

    first: Op
    activation: Elementwise

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.first.name)  # the class is frozen

    def infer(self, *xs: Spec) -> Spec:
        return self.activation.infer(self.first.infer(*xs))

    def forward(self, *xs: Array) -> Array:
        y: Array = self.activation.forward(self.first.forward(*xs))
        return y

    def expand(self, *xs: Node) -> tuple[Node]:
        return (self.activation(self.first(*xs)),)

    def __str__(self) -> str:
        return f"{self.first}+{self.activation}"

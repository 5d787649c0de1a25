"""Activation functions and dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import Node
from minigraph.nn.module import Module


@dataclass(eq=False, repr=False)
class ReLU(Module):
    """0 where x is negative, else x.  `inplace` changes nothing: memory is the compiler's work."""

    inplace: bool = False

    def forward(self, x: Any) -> Node:
        return ops.relu(x)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


@dataclass(eq=False, repr=False)
class Hardswish(Module):
    """0 below -3, x above 3, x * (x + 3) / 6 in between.  `inplace` changes nothing."""

    inplace: bool = False

    def forward(self, x: Any) -> Node:
        return ops.hardswish(x)


@dataclass(eq=False, repr=False)
class Dropout(Module):
    """In training each element 0 with probability p, else x / (1 - p), as in `torch.nn`.

    Masks follow the option `seed` of `mg.comp_graph`.  `inplace` changes nothing.
    """

    p: float = 0.5
    inplace: bool = False

    shown = "p={p}, inplace={inplace}"

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise GraphError(f"Dropout: p is a probability, not {self.p!r}")

    def forward(self, x: Any) -> Node:
        return ops.dropout(x, self.p, self.training)

"""Conversion between element types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigraph.graph import Array, DType, Node, Spec, as_dtype, as_node
from minigraph.ops.builder import builder
from minigraph.ops.elementwise import Elementwise, kind


@dataclass(frozen=True)
class Astype(Elementwise):
    """x with another dtype; floats to integers truncate."""

    dtype: DType

    c = "{0}"  # C converts when it stores the value
    accepts = "fiub"

    def infer(self, x: Spec) -> Spec:
        return Spec(x.shape, self.dtype)

    def forward(self, x: Array) -> Array:
        return x.astype(self.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node | None]:
        floats = kind(self.dtype) == kind(x.dtype) == "f"
        return (astype(dy, x.dtype) if floats else None,)


@builder
def astype(x: Any, dtype: Any) -> Node:
    """Return x converted to `dtype`."""
    x, dtype = as_node(x), as_dtype(dtype)
    return x if x.dtype == dtype else Astype(dtype)(x)

"""The precisions in which networks are trained, and what each means to who runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """What may be used inside convolutions and products.

    options  of minigraph
    width    bytes of a number of their results
    jax      JAX's name of it; empty where there is none
    """

    options: Mapping[str, str]
    width: int
    jax: str = ""

    @property
    def small(self) -> bool:
        """Whether their operands are cast to a type of 16 bits."""
        return self.width < 4


PRECISIONS = {
    "float32": Precision({}, 4, "highest"),
    "tf32": Precision({"precision": "tf32"}, 4, "tensorfloat32"),
    "bfloat16": Precision({"amp": "bfloat16"}, 2),
    "float16": Precision({"amp": "float16"}, 2),
}
USUAL = "float32"

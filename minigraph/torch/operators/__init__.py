"""The operators of ATen that minigraph computes."""

from minigraph.torch.operators import backward, elementwise, images, layers, reductions, tensors
from minigraph.torch.operators.table import (
    DTYPES,
    NESTED,
    PROMOTING,
    ROWS,
    Row,
    define,
    row,
    rows,
)

__all__ = ["DTYPES", "NESTED", "PROMOTING", "ROWS", "Row", "define", "row", "rows"]

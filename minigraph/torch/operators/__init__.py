"""The operators of ATen that minigraph computes."""

from minigraph.torch.operators import backward, elementwise, images, layers, reductions, tensors
from minigraph.torch.operators.table import (
    DTYPES,
    NESTED,
    OPERATORS,
    PROMOTING,
    ROWS,
    Row,
    row,
    rows,
)

__all__ = ["DTYPES", "NESTED", "OPERATORS", "PROMOTING", "ROWS", "Row", "row", "rows"]

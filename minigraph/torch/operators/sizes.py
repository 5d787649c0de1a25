"""Rows of arithmetic with sizes, and of what Python's operators do."""

from __future__ import annotations

import operator
from typing import Any

from minigraph.graph import Node
from minigraph.torch.operators.table import ROWS, row

OPERATORS = "getitem add sub mul truediv floordiv mod neg pow eq ne lt le gt ge and_ or_ not_"
ROWS |= {f"_operator.{name}": getattr(operator, name) for name in OPERATORS.split()}
ROWS |= {"torch.sym_max": max, "torch.sym_min": min, "torch.sym_not": operator.not_}


@row("sym_size.int")
def _size(x: Node, axis: int) -> Any:
    return x.shape[axis]


@row("_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range_for_size")
def _nothing(*unused: Any, **others: Any) -> None:
    """Check nothing: what tracing has assumed holds where the shapes are the same."""


@row("sym_numel")
def _numel(x: Node) -> Any:
    return x.size

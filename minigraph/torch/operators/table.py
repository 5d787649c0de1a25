"""The table of supported ATen operators: each row is a small function.

A row takes the arguments of its operator in the captured graph: expressions for tensors, Python
values for the others; sizes may be symbolic.  The caller casts results to torch's dtypes, so a row
names only the dtypes in which it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from minigraph.errors import DTypeError
from minigraph.graph import BFLOAT16, DType

OPERATORS = torch.library.Library("minigraph", "DEF")  # custom operators of captured graphs
Row = Callable[..., Any]
ROWS: dict[str, Row] = {}  # by the name of an operator's overload, such as "aten.relu.default"
PROMOTING: set[str] = set()
NESTED = {  # higher-order operators that only run a graph, and the index of that argument
    "higher_order.wrap_with_set_grad_enabled": 1,
    "higher_order.wrap_with_autocast": 4,
}


class _DTypes(dict[torch.dtype, DType]):
    def __missing__(self, dtype: torch.dtype) -> DType:
        raise DTypeError(f"{str(dtype).removeprefix('torch.')} is not supported")


NAMES = "float16 float32 float64 bool uint8 uint16 uint32 uint64 int8 int16 int32 int64"
DTYPES = _DTypes({getattr(torch, name): np.dtype(name) for name in NAMES.split()})
DTYPES[torch.bfloat16] = BFLOAT16


def define(signature: str, empty: Callable[..., Any], function: Row) -> None:
    """Define a custom operator of captured graphs, and enter its row.

    empty  returns empty tensors of the results' shapes, which tracing needs
    """
    name = OPERATORS.define(signature)
    OPERATORS.impl(name, empty, "CompositeExplicitAutograd")
    ROWS[f"minigraph.{name}.default"] = function


def row(*names: str, promotes: bool = False) -> Callable[[Row], Row]:
    """Return a decorator that enters a function as the row of overloads.

    promotes  whether torch promotes the dtypes of all operands to one
    """

    def enter(function: Row) -> Row:
        for name in names:
            overload = f"aten.{name}" if "." in name else f"aten.{name}.default"
            ROWS[overload] = function
            if promotes:
                PROMOTING.add(overload)
        return function

    return enter


def rows(table: dict[str, Row], promotes: bool = False) -> None:
    """Enter functions, each as the row of the overloads that its key names."""
    for names, function in table.items():
        row(*names.split(), promotes=promotes)(function)

"""C for one element: types, loads, stores, and the expression of an elementwise op."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigraph.dtypes import BOOL, INTEGERS, DType
from minigraph.graph import Constant, Copy, Node, Op
from minigraph.ops.elementwise import Elementwise, kind

C_TYPES: dict[DType, str] = {
    np.dtype("float32"): "float",
    np.dtype("float64"): "double",
    BOOL: "uint8_t",
    **{dtype: f"{dtype.name}_t" for dtype in INTEGERS},
}


def c_type(dtype: DType) -> str:
    """Return the C type that holds an element in memory; KeyError for 16-bit floats."""
    return C_TYPES[dtype]


def expressible(*dtypes: DType) -> bool:
    """Whether C has all of these types."""
    return all(dtype in C_TYPES for dtype in dtypes)


def expression(op: Op, dtypes: Sequence[DType], result: DType, args: Sequence[str]) -> str:
    """Return the C expression of `op` for operands `args` of `dtypes`.

    >>> import numpy as np
    >>> from minigraph.ops.exponential import Exp
    >>> expression(Exp(), [np.dtype("float32")], np.dtype("float32"), ["x"])
    'expf(x)'
    """
    names = _names(dtypes, result)
    return _template(op, dtypes).format(*args, **names, op=op, i="(uint64_t)i")


def support(op: Op, dtypes: Sequence[DType], result: DType) -> list[str]:
    """Return the C functions that `expression` calls."""
    if not isinstance(op, Elementwise):
        return []
    text = op.support if kind(dtypes[-1]) == "f" else op.support_int
    whole = text.format(**_names(dtypes, result)).strip()
    return [part for part in re.split(r"\n(?=static)", whole) if part]


def takes_index(op: Op) -> bool:
    """Whether the expression depends on the index of the element, as random numbers do."""
    return isinstance(op, Elementwise) and "{i}" in op.c


def literal(value: Any) -> str:
    """Return a number so that C reads back the same one."""
    if kind(value.dtype) != "f":
        return str(int(value))
    if np.isfinite(value):
        return float(value).hex()
    return "NAN" if np.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"


def is_number(node: Node) -> bool:
    """Whether a node is a constant of one element, which a kernel need not read from a buffer."""
    return isinstance(node.op, Constant) and node.size == 1 and expressible(node.dtype)


def stored(dtype: DType, value: str) -> str:
    """Return the expression of `value` as it is stored."""
    return f"({value}) != 0" if dtype.name == "bool" else value


def _template(op: Op, dtypes: Sequence[DType]) -> str:
    if isinstance(op, Copy):
        return "{0}"
    assert isinstance(op, Elementwise)
    group = kind(dtypes[-1])
    if group == "b" and op.c_bool:
        return op.c_bool
    return op.c_int if group in "iub" and op.c_int else op.c


def _names(dtypes: Sequence[DType], result: DType) -> dict[str, str]:
    # The last operand: the condition of a `where` comes first.
    last = dtypes[-1]
    return {"T": c_type(last), "f": "f" if last.name == "float32" else "", "R": c_type(result)}

"""C for one element: types, literals, and the expression of an elementwise op.

Floats of 16 bits are stored as their bits, in memory and in the kernel's variables, and computed in
float32: an expression widens its operands and rounds its result, so a kernel of several ops gives
the same bits as one kernel for each op.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from minigraph.arguments import short_repr
from minigraph.errors import GraphError
from minigraph.graph import BFLOAT16, BOOL, INTEGERS, Constant, DType, Node, Op
from minigraph.jit.small_float import (
    EXACT_TO_BFLOAT16,
    SMALL_FLOATS,
    compute_dtype,
    conversion,
    rounding,
)
from minigraph.ops.elementwise import Elementwise, kind

C_TYPES: dict[DType, str] = {
    np.dtype("float32"): "float",
    np.dtype("float64"): "double",
    **dict.fromkeys(SMALL_FLOATS, "uint16_t"),  # their bits
    BOOL: "uint8_t",
    **{dtype: f"{dtype.name}_t" for dtype in INTEGERS},
}

_ROUND = {dtype: rounding(dtype)[0] for dtype in SMALL_FLOATS}


def c_type(dtype: DType) -> str:
    return C_TYPES[dtype]


def expression(
    op: Op,
    dtypes: Sequence[DType],
    result: DType,
    args: Sequence[str],
    rounded: bool = True,
    element: DType | None = None,
    index: str = "i",
) -> str:
    """Return the C expression of `op` for operands `args` of `dtypes`; a bool is 0 or 1.

    rounded  whether to round a result of 16 bits to its bits, or to leave it in float32
    element  dtype of roundings inside the expression; by default `result`
    index    C expression for the index of the element, which random ops read

    >>> import numpy as np
    >>> from minigraph.ops.exponential import Exp
    >>> expression(Exp(), [np.dtype("float32")], np.dtype("float32"), ["x"])
    'expf(x)'
    """
    assert isinstance(op, Elementwise)
    if op.c_bits and result in SMALL_FLOATS:
        infinity = np.array(np.inf).astype(result).view(np.uint16)
        return filled(op, op.c_bits, *args, inf=hex(infinity))
    template = op.template(dtypes[-1])
    if not template:
        raise GraphError(
            f"{op.name} has no C expression: set the attribute `c` of its class, or use the device "
            '"reference", which runs `forward`'
        )
    names = {**_names(dtypes, result), "round": _ROUND.get(element or result, "")}
    operands = [_converted(d, compute_dtype(d), x) for d, x in zip(dtypes, args, strict=True)]
    text = filled(op, template, *operands, **names, i=f"(uint64_t){index}")
    if result == BOOL:
        return f"({text}) != 0"
    if not rounded:
        return text
    if is_exact(op, result):
        return f"{EXACT_TO_BFLOAT16[0]}({text})"
    return _converted(compute_dtype(dtypes[-1]), result, text)


def support(op: Op, dtypes: Sequence[DType], result: DType) -> list[str]:
    """Return the texts of the C functions that `expression` calls."""
    assert isinstance(op, Elementwise)
    if op.c_bits and result in SMALL_FLOATS:
        return []
    text = op.support if kind(dtypes[-1]) == "f" else op.support_int
    functions = re.split(r"\n(?=static)", filled(op, text, **_names(dtypes, result)).strip())
    exact = is_exact(op, result)
    casts = [(d, compute_dtype(d)) for d in dtypes]
    casts += [(compute_dtype(dtypes[-1]), result)] * (not exact)
    conversions = [part for cast in casts for part in conversion(*cast)[1]]
    conversions += EXACT_TO_BFLOAT16[1] if exact else ()
    if "{round}" in op.c and result in SMALL_FLOATS:
        conversions += rounding(result)[1]
    return list(dict.fromkeys([*conversions, *filter(None, functions)]))


def _converted(source: DType, target: DType, x: str) -> str:
    function, _ = conversion(source, target)
    return f"{function}({x})" if function else x


def filled(op: Op, template: str, *operands: str, **names: Any) -> str:
    """Return a C template of an op's class with its fields filled; GraphError if that fails."""
    try:
        return template.format(*operands, **names, op=op)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        attributes = [f"op.{field.name}" for field in fields(op)]  # type: ignore[arg-type]
        keys = ", ".join(f"{{{name}}}" for name in (*range(len(operands)), *names, *attributes))
        raise GraphError(
            f"{op.name}: cannot fill the C template {short_repr(template)} ({error}); its "
            f"fields may be {keys}; write braces of C twice"
        ) from None


def is_exact(op: Op | None, result: DType) -> bool:
    """Whether the result of the op needs no rounding to bfloat16."""
    return isinstance(op, Elementwise) and op.exact and result == BFLOAT16


def takes_index(op: Op | None) -> bool:
    """Whether the expression depends on the index of the element, as that of a random op does."""
    return isinstance(op, Elementwise) and "{i}" in op.c


def literal(value: Any) -> str:
    """Return a C literal with the exact value of a NumPy scalar, or the bits of a 16-bit float."""
    if value.dtype in SMALL_FLOATS:
        return str(value.view(np.uint16))
    if kind(value.dtype) != "f":
        return str(int(value))
    if np.isfinite(value):
        return float(value).hex()
    return "NAN" if np.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"


def limits(dtype: DType) -> dict[str, str]:
    """Return the C names of the lowest and the highest value of a dtype."""
    if kind(dtype) == "f":
        return {"lowest": "-INFINITY", "highest": "INFINITY"}
    if dtype == BOOL:
        return {"lowest": "0", "highest": "1"}
    name = dtype.name.upper()
    lowest = f"{name}_MIN" if kind(dtype) == "i" else "0"
    return {"lowest": lowest, "highest": f"{name}_MAX"}


def is_number(node: Node) -> bool:
    """Whether a node is a constant of one element, which a kernel reads from its arguments."""
    return isinstance(node.op, Constant) and node.size == 1


def _names(dtypes: Sequence[DType], result: DType) -> dict[str, str]:
    dtype = compute_dtype(dtypes[-1])  # the first operand of `where` is its condition
    suffix = "f" if dtype.name == "float32" else ""
    bits = f"int{8 * dtype.itemsize}_t"
    return {"T": c_type(dtype), "f": suffix, "R": c_type(compute_dtype(result)), "B": bits}

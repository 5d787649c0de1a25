"""What elementwise ops have in common: promotion, broadcasting, and their C expression.

The ops themselves stand in `arithmetic`, `exponential`, `trigonometric`, `comparison` and
`activation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import BFLOAT16, FLOATS, DType, Node, Op, Shape, Spec, as_array, constant
from minigraph.ops.builder import builder


def kind(dtype: DType) -> str:
    """Return "f" for floats (bfloat16 too), "i" or "u" for integers, "b" for bool."""
    return "f" if dtype in FLOATS else dtype.kind


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return NumPy's broadcast shape; ShapeError if there is none."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ShapeError(f"shapes {' and '.join(map(str, shapes))} do not broadcast") from None


class Elementwise(Op):
    """An op that computes each output element from the input elements at the same index.

    Its inputs broadcast against each other as in NumPy and have one dtype (`promote` sees to it);
    the result has it too, unless `result` says otherwise.

    `c` is the same function as a C expression, for the CPU and for CUDA alike: {0}, {1}, ... are
    the inputs, {T} is their type and {f} the suffix that C's mathematical functions have for it
    ("f" or nothing); {op.x} is the op's field x.  Where integers or bools need another expression
    it stands in `c_int` or `c_bool`.  `support` and `support_int` are C functions, with {T} and
    {f}, that the expression calls.
    """

    c: ClassVar[str]
    c_int: ClassVar[str] = ""
    c_bool: ClassVar[str] = ""
    support: ClassVar[str] = ""
    support_int: ClassVar[str] = ""
    accepts: ClassVar[str] = "fiu"  # kinds of dtype
    result: ClassVar[DType | None] = None
    costly: ClassVar[bool] = False  # computing an element takes longer than loading it from a cache
    domain: ClassVar[tuple[float, float]] = (-2.0, 2.0)  # where tests draw inputs from

    def infer(self, *xs: Any, **kwargs: Any) -> Spec:
        if len({x.dtype for x in xs}) > 1:
            raise DTypeError(f"{self.name} takes operands of one dtype")
        self.check_kind(xs[0].dtype)
        return Spec(broadcast_shapes(*(x.shape for x in xs)), self.result or xs[0].dtype)

    def check_kind(self, dtype: DType) -> None:
        if kind(dtype) not in self.accepts:
            names = {"f": "floats", "i": "integers", "u": "unsigned integers", "b": "bool"}
            wanted = ", ".join(names[k] for k in self.accepts)
            raise DTypeError(f"{self.name} takes {wanted}, not {dtype.name}")


def common_dtype(*xs: Any) -> DType:
    """Return the dtype that NumPy 2 computes with: Python numbers take that of the arrays.

    bfloat16, which NumPy does not know, wins over integers and yields to wider floats.
    """
    strong = [x.dtype for x in xs if hasattr(x, "dtype")]
    if BFLOAT16 in strong:
        others = {d for d in strong if kind(d) == "f"} - {BFLOAT16}
        return np.result_type(np.float32, *others) if others else BFLOAT16
    weak = [x for x in xs if not hasattr(x, "dtype")]
    return np.result_type(*strong, *weak)


def promote(*xs: Any, floating: bool = False) -> tuple[Node, ...]:
    """Return numbers, arrays and expressions as expressions of one dtype.

    With `floating`, integers become the float that NumPy's mathematical functions give for them.
    """
    values = [x if isinstance(x, Node | bool | int | float) else as_array(x) for x in xs]
    dtype = common_dtype(*values)
    if floating and kind(dtype) != "f":
        dtype = np.result_type(dtype, np.float16)
    return tuple(as_operand(x, dtype) for x in values)


def as_operand(x: Any, dtype: DType) -> Node:
    """Return `x` as an expression of `dtype`."""
    if isinstance(x, Node):
        return x if x.dtype == dtype else x.astype(dtype)
    try:
        with np.errstate(over="ignore"):  # 1e300 is infinity in float32
            return constant(np.asarray(x, dtype))
    except (OverflowError, ValueError):
        raise DTypeError(f"{x} does not fit into {dtype.name}") from None


def elementwise(op: Elementwise) -> Callable[..., Node]:
    """Return the function that users call: promote the operands, apply `op`."""
    floating = op.accepts == "f"

    def build(*xs: Any) -> Node:
        if len(xs) != arity:
            raise TypeError(f"{op.name}() takes {arity} operands, not {len(xs)}")
        return op(*promote(*xs, floating=floating))

    arity = op.forward.__code__.co_argcount - 1
    build.__name__ = build.__qualname__ = op.name
    build.__doc__ = op.__doc__
    build.__module__ = type(op).__module__
    return builder(build)

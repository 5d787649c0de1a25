"""The base of elementwise ops: promotion, broadcasting, and C expressions; and the casts.

The other ops are in `arithmetic`, `exponential`, `trigonometric`, `comparison` and `activation`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar

import numpy as np

from minigraph.arguments import Kind, short_repr
from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import (
    BFLOAT16,
    BOOL,
    FLOATS,
    Array,
    Constant,
    DType,
    DTypeLike,
    Node,
    Op,
    Operand,
    Shape,
    Spec,
    SymbolicSize,
    Tensor,
    as_array,
    builder,
    cast,
    constant,
    from_size,
    function_of,
    is_symbolic,
)

# Functions of C's library with exact results, and calls of its functions in a C expression.
EXACT_FUNCTIONS = {"ceil", "copysign", "fabs", "floor", "fma", "fmod", "rint", "sqrt", "trunc"}
CALL = re.compile(r"\b(?!mg_)(\w+)\{f\}\(")


def kind(dtype: DType) -> str:
    """Return "f" for floats (bfloat16 too), "i" or "u" for integers, "b" for bool."""
    return "f" if dtype in FLOATS else dtype.kind


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return NumPy's broadcast shape; ShapeError if shapes do not broadcast.

    A symbolic size broadcasts only with itself and 1, even if it is 1 in a call.
    """
    different = {shape for shape in shapes if shape}
    if len(different) < 2:
        return next(iter(different), ())
    try:
        if not any(map(is_symbolic, shapes)):
            return np.broadcast_shapes(*shapes)
        axes = itertools.zip_longest(*map(reversed, shapes), fillvalue=1)
        sizes = [{n for n in axis if n != 1} or {1} for axis in axes]
        return tuple(n for (n,) in reversed(sizes))
    except ValueError:
        names = " and ".join(map(str, shapes))
        text = f"shapes {names} do not broadcast: along an axis, sizes are equal or 1"
        raise ShapeError(text + advice_on_multiples(shapes)) from None


def advice_on_multiples(shapes: Iterable[Shape]) -> str:
    """Return advice if shapes have a symbolic size that is divided with a remainder, else ""."""
    sizes = (n for shape in shapes for n in shape if isinstance(n, SymbolicSize))
    divided = any("//" in str(n) for n in sizes)
    return "; an input's size '32*h' leaves no remainder when it is halved" if divided else ""


class Elementwise(Op):
    """An op that computes each output element from the input elements at the same index.

    The inputs broadcast as in NumPy and have one dtype (by `promote`), which is also the result's
    unless `result` differs.  Without `forward`, the op means NumPy's function of its name.

    `c` is the function as a C expression, for the CPU and CUDA: {0}, {1}, ... are the inputs, {T}
    is their type, {f} the suffix of C's mathematical functions for it ("f" or nothing), {op.x} the
    op's field x, and {round} a function that rounds to the element type from the wider type in
    which C computes.  `c_int` and `c_bool` are other expressions for integers and bools.  `c_bits`
    is one of the bits of 16-bit floats, for the CPU, with {inf} for those of infinity.  `support`
    and `support_int` are C functions that the expression calls, with {T}, {f} and {B}, the integer
    type of the same size.

    Users call `of`; `minigraph.ops` exports it under the op's name.
    """

    c: ClassVar[str] = ""
    c_int: ClassVar[str] = ""
    c_bool: ClassVar[str] = ""
    c_bits: ClassVar[str] = ""
    support: ClassVar[str] = ""
    support_int: ClassVar[str] = ""
    accepts: ClassVar[str] = "fiu"  # kinds of dtype
    result: ClassVar[DType | None] = None
    exact: ClassVar[bool] = False  # of floats of 16 bits the result is one: it needs no rounding
    costly: ClassVar[bool] = False  # computing an element takes longer than loading it from a cache

    # Tests draw inputs from `domain`, and on both sides of each of the `kinks`: the points where
    # one formula ends and another begins.
    domain: ClassVar[tuple[float, float]] = (-2.0, 2.0)
    kinks: ClassVar[tuple[float, ...]] = ()

    operands: ClassVar[tuple[str, ...]]  # the names of the inputs, as in `forward`; of a ufunc x, y
    of: ClassVar[Callable[..., Node]]

    def __init_subclass__(cls, eq: bool = True) -> None:
        super().__init_subclass__(eq)
        if cls.forward is Op.forward and isinstance(ufunc := getattr(np, cls.name, None), np.ufunc):
            cls.forward = ufunc  # type: ignore[method-assign]
        if "operands" not in vars(cls):
            cls.operands = _operands(cls.forward)
        cls.of = staticmethod(_function(cls))

    def infer(self, *xs: Any, **kwargs: Any) -> Spec:
        if len({x.dtype for x in xs}) > 1:
            raise DTypeError("the operands differ in dtype")
        self.check_kind(xs[0].dtype)
        return Spec(broadcast_shapes(*(x.shape for x in xs)), self.result or xs[0].dtype)

    def template(self, dtype: DType) -> str:
        """Return the C expression for operands of `dtype`, with places for them; "" if none."""
        group = kind(dtype)
        if group == "b" and self.c_bool:
            return self.c_bool
        return self.c_int if group in "iub" and self.c_int else self.c

    def has_bits_of_numpy(self, dtype: DType) -> bool:
        """Whether `forward` and C give the same bits for `dtype`, except for denormals.

        Only then do passes fold an op of constants.  Override it if the formulas in NumPy and in C
        round differently.
        """
        return kind(dtype) != "f" or EXACT_FUNCTIONS.issuperset(CALL.findall(self.c + self.support))

    def check_kind(self, dtype: DType) -> None:
        if kind(dtype) not in self.accepts:
            names = {"f": "floats", "i": "integers", "u": "unsigned integers", "b": "bool"}
            accepted = ", ".join(names[k] for k in self.accepts)
            raise DTypeError(f"the operands are {dtype.name}; it takes {accepted}")


def common_dtype(*xs: Any) -> DType:
    """Return the dtype to which NumPy 2 promotes: Python numbers take the dtype of the arrays.

    bfloat16, which NumPy lacks, takes precedence over integers, and wider floats over it.
    """
    strong = [x.dtype for x in xs if hasattr(x, "dtype")]
    if BFLOAT16 in strong:
        other_floats = {d for d in strong if kind(d) == "f"} - {BFLOAT16}
        return np.result_type(np.float32, *other_floats) if other_floats else BFLOAT16
    weak = [x for x in xs if not hasattr(x, "dtype")]
    weak = [(1 if x.is_integer else 1.0) if isinstance(x, SymbolicSize) else x for x in weak]
    return np.result_type(*strong, *weak)


NUMBERS = Node | bool | int | float | SymbolicSize


def promote(*xs: Any, floating: bool = False) -> tuple[Node, ...]:
    """Return numbers, arrays and expressions as expressions of one dtype.

    With `floating`, integers become the float that NumPy's mathematical functions give for them.
    """
    values = [x if isinstance(x, NUMBERS) else as_array(x) for x in xs]
    dtype = common_dtype(*values)
    if floating and kind(dtype) != "f":  # the widest float that one of the integers gives
        dtypes = [x.dtype for x in values if hasattr(x, "dtype")]
        if not dtypes or np.result_type(*dtypes) != dtype:  # a Python number and bools
            dtypes = [dtype]
        dtype = np.result_type(*(np.result_type(d, np.float16) for d in dtypes))
    return tuple(as_operand(x, dtype) for x in values)


# Parsed to an expression of floats.
FLOAT_TENSOR = Kind(
    "a number, an array or an expression", lambda x: promote(x, floating=True)[0], DTypeError
)
FloatTensor = Annotated[Any, FLOAT_TENSOR]


def widen(x: Any) -> Any:
    """Return an array or expression, in float32 if it is of 16-bit floats.

    Their range and precision are too small for sums, above all of squares and exponentials.
    """
    return x.astype("float32") if x.dtype in (np.float16, BFLOAT16) else x


def sum_dtype(dtype: DType) -> DType:
    """Return the dtype in which NumPy adds up many numbers: for floats a wider one.

    Along axes other than the last, NumPy adds one number after the other.
    """
    if kind(dtype) != "f":
        return dtype
    return np.dtype(np.longdouble if dtype == np.float64 else np.float64)


def as_operand(x: Any, dtype: DType) -> Node:
    """Return `x` as an expression of `dtype`; DTypeError for a number that does not fit into it."""
    if isinstance(x, Node):
        if x.dtype == dtype:
            return x
        if isinstance(x.op, Constant):
            return constant(cast(x.op.value, dtype))
        return x.astype(dtype)
    if isinstance(x, SymbolicSize):
        return from_size(x, dtype)
    try:
        if not isinstance(x, int):
            return constant(cast(as_array(x), dtype))
        if kind(dtype) == "f":
            return constant(cast(np.asarray(float(x)), dtype))
        return constant(np.asarray(x, dtype))
    except OverflowError:
        raise DTypeError(f"{short_repr(x)} does not fit into {dtype.name}") from None


def _operands(forward: Callable[..., Any]) -> tuple[str, ...]:
    if isinstance(forward, np.ufunc):
        return ("x", "y")[: forward.nin]
    return tuple(inspect.signature(forward).parameters)[1:]


def _function(cls: type[Elementwise]) -> Callable[..., Node]:
    """Return the function that promotes its operands and applies the op without attributes."""
    names, floating = cls.operands, cls.accepts == "f"
    op = functools.cache(cls)  # one object for all nodes, which dictionaries compare faster

    def build(*xs: Operand) -> Node:
        if len(xs) != len(names):
            raise TypeError(f"{cls.name}() takes {len(names)} operands, not {len(xs)}")
        try:
            operands = promote(*xs, floating=floating)
        except DTypeError:
            if cls.result != BOOL:
                raise
            # A number beyond the dtype of the others is compared in a dtype that holds both.
            operands = promote(*(np.asarray(x) if isinstance(x, int | float) else x for x in xs))
        return op()(*operands)

    only = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(name, only, annotation="Operand") for name in names]
    build.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function_of(cls, build)


class MathFunction(Elementwise):
    """A function of floats that C's library has under the op's name."""

    accepts = "f"
    costly = True

    def __init_subclass__(cls, eq: bool = True) -> None:
        super().__init_subclass__(eq)
        cls.c = f"{cls.name}{{f}}({', '.join(f'{{{i}}}' for i in range(len(cls.operands)))})"


class Astype(Elementwise):
    """x with another dtype; floats to integers truncate."""

    dtype: DType

    c = "{0}"  # C converts when it stores the value
    c_bool = "({0} ? ({R})1 : 0)"  # compilers make a mask of this after a comparison
    accepts = "fiub"

    def infer(self, x: Spec) -> Spec:
        return Spec(x.shape, self.dtype)

    def template(self, dtype: DType) -> str:
        """Return C that converts numbers out of range alike in vectors and one by one."""
        if kind(dtype) != "f" or kind(self.dtype) not in "iu":
            return super().template(dtype)
        bits = 8 * self.dtype.itemsize
        if bits < 32:
            return "({R})(int32_t){0}"
        if kind(self.dtype) == "i":
            return "({R}){0}"
        half, top = f"0x1p{bits - 1}{{f}}", f"({{R}})1 << {bits - 1}"
        signed = f"({{R}})(int{bits}_t)"
        return f"({{0}} < {half} ? {signed}{{0}} : {signed}({{0}} - {half}) ^ {top})"

    def has_bits_of_numpy(self, dtype: DType) -> bool:
        return kind(dtype) != "f" or kind(self.dtype) not in "iu"

    def forward(self, x: Array) -> Array:
        return x.astype(self.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node | None]:
        floats = kind(self.dtype) == kind(x.dtype) == "f"
        return (astype(dy, x.dtype) if floats else None,)


@builder
def astype(x: Tensor, dtype: DTypeLike) -> Node:
    """Return x converted to `dtype`; floats to integers truncate, to any number if out of range.

    >>> cg.compile([], ops.astype([1.7, -1.7], "int64"))()
    array([ 1, -1])
    """
    return x if x.dtype == dtype else Astype(dtype)(x)

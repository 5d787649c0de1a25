"""C values as Halide's expressions: conversions, operators and functions, with C's results.

By default, Halide's floats have no NaN or infinity, and sums may be reassociated.  `strict_float`
makes an operation follow IEEE 754.  Integers wrap around.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import halide as hl

from minigraph.jit.halide.source import LIBRARY

BOOL, INT, FLOAT, DOUBLE = hl.Bool(), hl.Int(32), hl.Float(32), hl.Float(64)
TYPES: dict[str, hl.Type] = {
    "float": FLOAT,
    "double": DOUBLE,
    "int": INT,
    **{f"int{bits}_t": hl.Int(bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}_t": hl.UInt(bits) for bits in (8, 16, 32, 64)},
}
OPERATORS: dict[str, Callable[[hl.Expr, hl.Expr], hl.Expr]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,  # of floats alone
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
OF_BOOLS = ("&", "|", "^", "==", "!=")  # operators that take bools without promotion
# An argument of every kernel: compilers do not know that it is 0.
ZERO = hl.Param(hl.UInt(32), "zero")


def constant(type_: hl.Type, value: float) -> hl.Expr:
    """Return a constant; an integer wraps around."""
    bits = type_.bits()
    if type_.is_float():
        return hl.f32(value) if type_ == FLOAT else hl.f64(value)
    if type_.is_bool():
        return hl.Expr(bool(value))
    wrapped = int(value) & ((1 << bits) - 1)
    if type_.is_uint():
        return getattr(hl, f"u{bits}")(wrapped)
    return getattr(hl, f"i{bits}")(wrapped - (wrapped >> (bits - 1) << bits))


def convert(type_: hl.Type, x: hl.Expr) -> hl.Expr:
    """Return a value converted as C converts it."""
    source = x.type()
    if source == type_:
        return x
    if source.is_bool():
        return hl.select(x, constant(type_, 1), constant(type_, 0))
    if type_.is_bool():
        return binary("!=", x, constant(source, 0))
    if source.is_float() and not type_.is_float() and type_.bits() < 64:
        # Numbers out of range become the processor's result, not an undefined value.  The xor keeps
        # Halide from merging the two casts.
        wide = INT if type_.bits() < 32 or type_.is_int() else hl.Int(64)
        x = hl.cast(wide, x) ^ constant(wide, 0)
    result = hl.cast(type_, x)
    # Compilers assume that a float cast to another length is finite.
    return hidden(result) if source.is_float() and type_.is_float() else result


def hidden(x: hl.Expr) -> hl.Expr:
    """Return a float through an operation that compilers cannot simplify."""
    bits = _bits(x)
    return hl.reinterpret(x.type(), bits ^ hl.cast(bits.type(), hl.Expr(ZERO)))


def _promoted(type_: hl.Type) -> hl.Type:
    """Return the type in which C computes with a value."""
    return INT if not type_.is_float() and type_.bits() < 32 else type_


def _common(x: hl.Expr, y: hl.Expr) -> hl.Type:
    types = [_promoted(x.type()), _promoted(y.type())]
    floats = [t for t in types if t.is_float()]
    return max(floats or types, key=lambda t: (t.bits(), t.is_uint()))


def _bits(x: hl.Expr) -> hl.Expr:
    return hl.reinterpret(hl.UInt(x.type().bits()), x)


def _sign(type_: hl.Type) -> hl.Expr:
    return constant(hl.UInt(type_.bits()), 1 << (type_.bits() - 1))


def _negated(x: hl.Expr) -> hl.Expr:
    if x.type().is_float():
        return hl.reinterpret(x.type(), _bits(x) ^ _sign(x.type()))
    return binary("-", constant(INT, 0), x)


def binary(op: str, x: hl.Expr, y: hl.Expr) -> hl.Expr:
    """Return the result of a C operator for two values."""
    if op in ("&&", "||"):
        return OPERATORS[op[0]](convert(BOOL, x), convert(BOOL, y))
    if op in ("<<", ">>"):
        type_ = _promoted(x.type())
        value, count = convert(type_, x), convert(hl.UInt(type_.bits()), y)
        return value >> count if op == ">>" else hl.cast(type_, _bits(value) << count)
    are_bools = x.type().is_bool() and y.type().is_bool()
    type_ = BOOL if are_bools and op in OF_BOOLS else _common(x, y)
    a, b = convert(type_, x), convert(type_, y)
    if type_.is_float():
        if op in ("<=", ">="):  # Halide's operators are true for NaN
            return binary(op[0], a, b) | binary("==", a, b)
        return hl.strict_float(OPERATORS[op](a, b))
    if type_.is_int() and op in "+-*":  # Halide assumes that integers do not overflow
        return hl.cast(type_, OPERATORS[op](_bits(a), _bits(b)))
    return OPERATORS[op](a, b)


def select(condition: hl.Expr, x: hl.Expr, y: hl.Expr) -> hl.Expr:
    type_ = x.type() if x.type() == y.type() else _common(x, y)
    return hl.select(convert(BOOL, condition), convert(type_, x), convert(type_, y))


UNARY: dict[str, Callable[[hl.Expr], hl.Expr]] = {
    "-": _negated,
    "+": lambda x: x,
    "!": lambda x: hl.logical_not(convert(BOOL, x)),
    "~": lambda x: ~convert(_promoted(x.type()), x),
}
CONSTANTS = {
    "INFINITY": constant(FLOAT, float("inf")),
    "NAN": constant(FLOAT, float("nan")),
    **{f"INT{n}_MIN": constant(hl.Int(n), 1 << (n - 1)) for n in (8, 16, 32, 64)},
    **{f"INT{n}_MAX": constant(hl.Int(n), (1 << (n - 1)) - 1) for n in (8, 16, 32, 64)},
    **{f"UINT{n}_MAX": constant(hl.UInt(n), -1) for n in (8, 16, 32, 64)},
}


def _copysign(x: hl.Expr, y: hl.Expr) -> hl.Expr:
    sign = _sign(x.type())
    return hl.reinterpret(x.type(), (_bits(x) & ~sign) | (_bits(y) & sign))


_REPLACED = {  # functions that Halide lacks or defines otherwise
    "fabs": lambda x: _copysign(x, constant(x.type(), 0)),
    "copysign": _copysign,
    "rint": hl.round,
    "hidden": hidden,
}
# Functions of the C library, each with the type of its arguments.
BUILTINS: dict[str, tuple[hl.Type, Callable[..., hl.Expr]]] = {
    name + suffix: (type_, _REPLACED.get(name) or getattr(hl, name))
    for name in (*LIBRARY, "hidden")
    for suffix, type_ in (("", DOUBLE), ("f", FLOAT))
}

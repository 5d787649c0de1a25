"""Values of C as Halide's expressions: conversions, operators and functions, with C's results.

Halide's floats are fast and loose by default: NaN and infinity do not exist, and sums may be taken
apart.  `strict_float` makes of an operation what IEEE 754 says.  Integers wrap around.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import halide as hl

BOOL, INT, FLOAT, DOUBLE = hl.Bool(), hl.Int(32), hl.Float(32), hl.Float(64)
TYPES: dict[str, hl.Type] = {
    "float": FLOAT,
    "double": DOUBLE,
    "int": INT,
    **{f"int{bits}_t": hl.Int(bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}_t": hl.UInt(bits) for bits in (8, 16, 32, 64)},
}
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,  # of floats alone
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
TURNED = {">": "<", ">=": "<="}
# An argument of every kernel: compilers do not know that it is 0.
ZERO = hl.Param(hl.UInt(32), "zero")


def number(type_: hl.Type, value: float) -> hl.Expr:
    if type_.is_float():
        return hl.f32(value) if type_ == FLOAT else hl.f64(value)
    if type_.is_bool():
        return hl.Expr(bool(value))
    wrapped = int(value) & ((1 << type_.bits()) - 1)
    half = hl.cast(hl.UInt(64), hl.u32(wrapped >> 32)) << hl.u64(32)
    whole = half | hl.cast(hl.UInt(64), hl.u32(wrapped & 0xFFFFFFFF))
    return hl.cast(type_, whole)


def to(type_: hl.Type, x: Any) -> hl.Expr:
    """Return a value converted as C converts it."""
    if isinstance(x, int):
        return number(type_, x)
    was = x.type()
    if was == type_:
        return x
    if was.is_bool():
        return hl.select(x, number(type_, 1), number(type_, 0))
    if was.is_float() and not type_.is_float() and type_.bits() < 64:
        # What does not fit becomes what the processor gives, and no undefined value.
        # Of two casts Halide makes one, but for what stands between them.
        wide = INT if type_.bits() < 32 or type_.is_int() else hl.Int(64)
        x = hl.cast(wide, x) ^ number(wide, 0)
    made = hl.cast(type_, x)
    # To compilers, a float of another length is a number that is finite.
    return hidden(made) if was.is_float() and type_.is_float() else made


def hidden(x: hl.Expr) -> hl.Expr:
    """Return a float that compilers know nothing about."""
    held = bits_of(x)
    return hl.reinterpret(x.type(), held ^ hl.cast(held.type(), hl.Expr(ZERO)))


def truth(x: Any) -> Any:
    if isinstance(x, int):
        return x != 0
    return x if x.type().is_bool() else hl.logical_not(binary("==", x, 0))


def promoted(x: Any) -> hl.Type:
    """The type in which C computes with a value."""
    if isinstance(x, int):
        return INT
    type_ = x.type()
    return INT if not type_.is_float() and type_.bits() < 32 else type_


def common(x: Any, y: Any) -> hl.Type:
    """Return the type of the usual arithmetic conversions."""
    a, b = promoted(x), promoted(y)
    floats = [t for t in (a, b) if t.is_float()]
    return max(floats or [a, b], key=lambda t: (t.bits(), t.is_uint()))


def bits_of(x: hl.Expr) -> hl.Expr:
    return hl.reinterpret(hl.UInt(x.type().bits()), x)


def _negative(type_: hl.Type) -> hl.Expr:
    """The bit of the sign."""
    return number(hl.UInt(type_.bits()), 1 << (type_.bits() - 1))


def negated(x: Any) -> Any:
    if isinstance(x, int):
        return -x
    type_ = promoted(x)
    if type_.is_float():
        return hl.reinterpret(type_, bits_of(x) ^ _negative(type_))
    return binary("-", 0, x)


def binary(op: str, x: Any, y: Any) -> Any:
    if op in TURNED:
        return binary(TURNED[op], y, x)
    if op == "!=":
        return hl.logical_not(to(BOOL, binary("==", x, y)))
    if op in ("&&", "||"):
        return binary(op[0], truth(x), truth(y))
    if isinstance(x, int) and isinstance(y, int):
        return int(eval(f"x {op} y".replace("/", "//")))  # of numbers that are not negative
    if op in ("<<", ">>"):
        return _shifted(op, x, y)
    both_bool = not any(isinstance(v, int) or not v.type().is_bool() for v in (x, y))
    type_ = BOOL if both_bool and op in "&|^==" else common(x, y)
    a, b = to(type_, x), to(type_, y)
    if type_.is_float():
        if op == "<=":  # Halide's is true of NaN
            return binary("<", a, b) | binary("==", a, b)
        return hl.strict_float(OPERATORS[op](a, b))
    if type_.is_int() and op in "+-*":  # Halide takes it that they do not overflow
        return hl.cast(type_, OPERATORS[op](bits_of(a), bits_of(b)))
    return OPERATORS[op](a, b)


def _shifted(op: str, x: Any, y: Any) -> hl.Expr:
    type_ = promoted(x)
    unsigned = hl.UInt(type_.bits())
    value, count = to(type_, x), to(unsigned, y)
    if op == ">>":
        return value >> count
    return hl.cast(type_, bits_of(value) << count)


def chosen(condition: Any, x: Any, y: Any) -> Any:
    if isinstance(condition, int):
        return x if condition else y
    if not isinstance(x, int) and not isinstance(y, int) and x.type() == y.type():
        return hl.select(condition, x, y)
    type_ = common(x, y)
    return hl.select(condition, to(type_, x), to(type_, y))


CONSTANTS = {
    "INFINITY": number(FLOAT, float("inf")),
    "NAN": number(FLOAT, float("nan")),
    **{
        f"{prefix}{bits}_{end}": number(of(bits), value)
        for bits in (8, 16, 32, 64)
        for prefix, of, end, value in (
            ("INT", hl.Int, "MIN", -(1 << (bits - 1))),
            ("INT", hl.Int, "MAX", (1 << (bits - 1)) - 1),
            ("UINT", hl.UInt, "MAX", (1 << bits) - 1),
        )
    },
}


def _copysign(x: hl.Expr, y: hl.Expr) -> hl.Expr:
    sign = _negative(x.type())
    return hl.reinterpret(x.type(), (bits_of(x) & ~sign) | (bits_of(y) & sign))


def _in_double(function: Callable[..., hl.Expr]) -> Callable[..., hl.Expr]:
    return lambda *args: to(args[0].type(), function(*(to(DOUBLE, x) for x in args)))


BUILTIN: dict[str, Callable[..., hl.Expr]] = {
    "fabs": lambda x: hl.reinterpret(x.type(), bits_of(x) & ~_negative(x.type())),
    "copysign": _copysign,
    "rint": hl.round,
    # Halide has its own of floats, which know neither NaN nor infinity.
    **{name: _in_double(getattr(hl, name)) for name in ("exp", "log", "pow")},
    **{
        name: getattr(hl, name)
        for name in ("sqrt", "floor", "ceil", "trunc")
        + ("sin", "cos", "tan", "asin", "acos", "atan", "atan2")
        + ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh")
    },
}

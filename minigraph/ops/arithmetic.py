"""Arithmetic of two elements and of one: sums, products, quotients, signs, and rounding."""

from __future__ import annotations

import numpy as np

from minigraph.errors import DTypeError
from minigraph.graph import Array, DType, Node, Operand, Tensor, builder, gradients, zero_gradient
from minigraph.ops.comparison import Signbit, where
from minigraph.ops.elementwise import Elementwise, MathFunction, kind, promote


class Add(Elementwise):
    """x + y; of bools, their disjunction."""

    example = "[1, 2], 10", "array([11, 12])"
    c = "{0} + {1}"
    accepts = "fiub"
    commutative = True
    grad = gradients(lambda dy, z, x, y: (dy, dy))


class Subtract(Elementwise):
    """x - y."""

    example = "[1, 2], 10", "array([-9, -8])"
    c = "{0} - {1}"
    grad = gradients(lambda dy, z, x, y: (dy, -dy))


class Multiply(Elementwise):
    """x * y; of bools, their conjunction."""

    example = "[1, 2], 10", "array([10, 20])"
    c = "{0} * {1}"
    accepts = "fiub"
    commutative = True
    grad = gradients(lambda dy, z, x, y: (dy * y, dy * x))


class Divide(Elementwise):
    """x / y."""

    c = "{0} / {1}"
    accepts = "f"
    domain = (0.3, 3.0)
    costly = True

    def grad(self, dy: Node, z: Node, x: Node, y: Node) -> tuple[Node, Node]:
        dx = dy / y
        return dx, -dx * z


# The library's fmod computes few bits of the quotient at a time.  If the quotient is not large, n
# is its floor, or by rounding the next integer, and fma gives x - n * y exactly: if its sign is not
# that of y, n is above the floor.  The code has no branch, so that compilers vectorise it.
_REST = """
static inline {T} mg_rest{f}({T} x, {T} y) {{
  const {T} n = floor{f}(x / y);
  const int near = fabs{f}(n) < (sizeof x == 4 ? 0x1p21 : 0x1p50) && fabs{f}(y) < INFINITY;
  const {T} far = fmod{f}(near ? 0 : x, near ? 1 : y);
  return near ? fma{f}(-n, y, x) : far;
}}"""


class FloorDivide(Elementwise):
    """floor(x / y), as in Python and NumPy; of integers, x // 0 is 0."""

    example = "[7, -7], 2", "array([ 3, -4])"
    c = "mg_floor_divide{f}({0}, {1})"
    c_int = "mg_floor_divide_{T}({0}, {1})"
    support = (
        _REST
        + """
static inline {T} mg_floor_divide{f}({T} x, {T} y) {{
  const {T} mod = mg_rest{f}(x, y), whole = (x - mod) / y;
  const {T} div = mod != 0 && (y < 0) != (mod < 0) ? whole - 1 : whole, down = floor{f}(div);
  const {T} near = div - down > ({T})0.5 ? down + 1 : down;
  return y == 0 ? x / y : div == 0 ? copysign{f}(0, x / y) : near;
}}"""
    )
    support_int = """
static inline {T} mg_floor_divide_{T}({T} x, {T} y) {{
  if (y == 0) return 0;
  if (y + 1 == 0 && ({T})-1 < 0) return 0 - (uint64_t)x;  /* the processor traps on INT_MIN / -1 */
  return x / y - (x % y != 0 && (x < 0) != (y < 0));
}}"""
    domain = (0.3, 3.0)
    costly = True
    grad = zero_gradient


class Remainder(Elementwise):
    """x - floor(x / y) * y, with the sign of y; of integers, x % 0 is 0."""

    example = "[7, -7], 3", "array([1, 2])"
    c = "mg_remainder{f}({0}, {1})"
    c_int = "mg_remainder_{T}({0}, {1})"
    support = (
        _REST
        + """
static inline {T} mg_remainder{f}({T} x, {T} y) {{
  const {T} rest = mg_rest{f}(x, y);
  const {T} mod = rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;
  return mod == 0 ? copysign{f}(0, y) : mod;
}}"""
    )
    support_int = """
static inline {T} mg_remainder_{T}({T} x, {T} y) {{
  if (y == 0 || (y + 1 == 0 && ({T})-1 < 0)) return 0;
  {T} mod = x % y;
  return mod != 0 && (x < 0) != (y < 0) ? mod + y : mod;
}}"""
    domain = (0.3, 3.0)
    costly = True
    grad = gradients(lambda dy, z, x, y: (dy, -dy * (x // y)))


class Negative(Elementwise):
    """-x."""

    example = "[1, -2]", "array([-1,  2])"
    c = "-{0}"
    c_bits = "{0} ^ 0x8000"
    exact = True
    grad = gradients(lambda dy, y, x: -dy)


class Abs(Elementwise):
    """|x|."""

    example = "[-1, 2]", "array([1, 2])"
    c = "fabs{f}({0})"
    c_bits = "{0} & 0x7fff"
    exact = True
    kinks = (0.0,)
    c_int = "({0} < 0 ? -{0} : {0})"
    grad = gradients(lambda dy, y, x: dy * Sign.of(x))


class Sign(Elementwise):
    """-1, 0 or 1; NaN of NaN."""

    example = "[-3.0, 0.0, 5.0]", "array([-1.,  0.,  1.])"
    c = "({0} != {0} ? {0} : ({T})(({0} > 0) - ({0} < 0)))"
    exact = True
    kinks = (0.0,)
    grad = zero_gradient


class Square(Elementwise):
    """x * x."""

    example = "[2, -3]", "array([4, 9])"
    c = "{0} * {0}"
    grad = gradients(lambda dy, y, x: dy * (2 * x))


class Sqrt(MathFunction):
    """The square root."""

    example = "[4.0, 9.0]", "array([2., 3.])"
    domain = (0.1, 4.0)
    grad = gradients(lambda dy, y, x: dy / (2 * y))


class Rsqrt(Elementwise):
    """1 / sqrt(x)."""

    example = "[4.0, 16.0]", "array([0.5 , 0.25])"
    c = "1 / sqrt{f}({0})"
    accepts = "f"
    domain = (0.1, 4.0)
    costly = True
    grad = gradients(lambda dy, y, x: dy * (-0.5 * y) * (y * y))

    def forward(self, x: Array) -> Array:
        return 1 / np.sqrt(x)


class Reciprocal(Elementwise):
    """1 / x."""

    example = "[2.0, 4.0]", "array([0.5 , 0.25])"
    c = "1 / {0}"
    accepts = "f"
    domain = (0.3, 3.0)
    costly = True
    grad = gradients(lambda dy, y, x: -dy * (y * y))


class Copysign(Elementwise):
    """|x| with the sign of y; a NaN counts as positive, because its sign is undefined."""

    example = "[1.0, 2.0], [-1.0, 1.0]", "array([-1.,  2.])"
    c = "copysign{f}({0}, {1} == {1} ? {1} : 1)"
    c_bits = "({0} & 0x7fff) | (({1} & 0x7fff) > {inf} ? 0 : {1} & 0x8000)"
    exact = True
    accepts = "f"
    kinks = (0.0,)
    grad = gradients(lambda dy, z, x, y: (dy * (Sign.of(x) * Copysign.of(1, y)), None))

    def forward(self, x: Array, y: Array) -> Array:
        return np.copysign(x, np.where(np.isnan(y), np.ones_like(y, shape=()), y))


class Hypot(MathFunction):
    """sqrt(x * x + y * y) without overflow on the way; infinite if x or y is."""

    example = "3.0, 4.0", "array(5.)"

    def grad(self, dy: Node, z: Node, x: Node, y: Node) -> tuple[Node, Node]:
        length = where(z == 0, 1, z)
        return dy * (x / length), dy * (y / length)


class Nextafter(Elementwise):
    """The number next to x in the direction of y, of float32 or float64."""

    example = "1.0, 2.0", "array(1.)"
    # The bits, as integers, have the order of the numbers if those of negative numbers are
    # reversed.  Comparing the numbers themselves would take denormals for 0.
    c = "mg_next_{T}({0}, {1})"
    support = """
static inline {T} mg_next_{T}({T} x, {T} y) {{
  const {B} least = ({B})((uint64_t)1 << (8 * sizeof x - 1));
  {B} p, q;
  memcpy(&p, &x, sizeof p);
  memcpy(&q, &y, sizeof q);
  const {B} from = p < 0 ? least - p : p, to = q < 0 ? least - q : q;
  const {B} at = to > from ? from + 1 : from - 1;
  {B} bits = at < 0 ? least - at : at;
  bits = (at == 0) & (p < 0) ? least : bits;
  bits = from == to || y != y ? q : bits;
  bits = x != x ? p : bits;
  {T} next;
  memcpy(&next, &bits, sizeof next);
  return next;
}}"""
    accepts = "f"
    costly = True
    grad = gradients(lambda dy, z, x, y: (dy, None))

    def check_kind(self, dtype: DType) -> None:
        super().check_kind(dtype)
        if dtype.itemsize == 2:  # C would take the next float32
            raise DTypeError(f"nextafter takes float32 and float64, not {dtype.name}")


class Rounding(Elementwise):
    """The base of roundings to an integral value of the same dtype, which integers are."""

    c_int = "{0}"
    exact = True
    grad = zero_gradient


class Floor(Rounding):
    """The largest integer not above x."""

    example = "[1.2, -1.2]", "array([ 1., -2.])"
    c = "floor{f}({0})"


class Ceil(Rounding):
    """The smallest integer not below x."""

    example = "[1.2, -1.2]", "array([ 2., -1.])"
    c = "ceil{f}({0})"


class Trunc(Rounding):
    """The integer next to x in the direction of zero."""

    example = "[1.7, -1.7]", "array([ 1., -1.])"
    c = "trunc{f}({0})"


class Round(Rounding):
    """The nearest integer, the even one of two."""

    example = "[0.5, 1.5, 2.4]", "array([0., 2., 2.])"
    c = "rint{f}({0})"

    def forward(self, x: Array) -> Array:
        return np.rint(x) if kind(x.dtype) == "f" else x


@builder
def divide(x: Operand, y: Operand) -> Node:
    """Return x / y; integers give float64.

    >>> cg.compile([], ops.divide([1, 2], 4))()
    array([0.25, 0.5 ])
    """
    x, y = promote(x, y)
    if kind(x.dtype) != "f":
        x, y = x.astype("float64"), y.astype("float64")
    return Divide()(x, y)


@builder
def positive(x: Tensor) -> Node:
    """Return x.

    >>> cg.compile([], ops.positive([-1.0, 2.0]))()
    array([-1.,  2.])
    """
    return x


# ---------------------------------------------------------------- divisions that round toward zero


def quotient_toward_zero(x: Node, y: Operand) -> Node:
    """Return x / y without its fraction, of floats or of integers."""
    if kind(x.dtype) == "f":
        return Trunc.of(x / y)
    quotient = FloorDivide.of(x, y)
    if kind(x.dtype) == "u":
        return quotient
    return where(_rounded_away(x, y), quotient + 1, quotient)


def remainder_toward_zero(x: Node, y: Operand) -> Node:
    """Return x - quotient_toward_zero(x, y) * y, with the sign of x."""
    if kind(x.dtype) == "f":
        # Not `abs` and `copysign`, whose gradient at 0 is 0, not 1.
        negative = Signbit.of(x)
        remainder = Remainder.of(where(negative, -x, x), Abs.of(y))
        return where(negative, -remainder, remainder)
    remainder = Remainder.of(x, y)
    if kind(x.dtype) == "u":
        return remainder
    return where(_rounded_away(x, y), remainder - y, remainder)


def _rounded_away(x: Node, y: Operand) -> Node:
    """Return whether the floor of x / y, of signed integers, is farther from 0 than x / y is."""
    return (Remainder.of(x, y) != 0) & ((x < 0) != (y < 0))

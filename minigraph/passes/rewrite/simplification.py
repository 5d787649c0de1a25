"""Level 1: cheaper expressions of the same values, bit for bit.

A rule holds for NaN, infinities and both zeros, and for integers that wrap around; this is why
x + 0 stays, which is 0.0 for x = -0.0, and x + -0.0 goes.  Only powers agree to rounding: the
library's `pow` is not exact.  For those that hold for ordinary numbers only, see `fast_math`.
"""

from __future__ import annotations

import math

from minigraph import ops
from minigraph.graph import BOOL, Graph, Node
from minigraph.ops.activation import Relu
from minigraph.ops.arithmetic import Abs, Rounding, Sign
from minigraph.ops.elementwise import Astype, kind
from minigraph.ops.shape import StopGradient
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite import broadcasting, folding, view
from minigraph.passes.rewrite.fact import (
    filled_with,
    is_bool,
    is_float,
    is_integral,
    is_lossless,
    is_normal,
    never_negative,
)
from minigraph.passes.rewrite.rule import Sides, rewrite, rule, rule_on, rules_in


def are_exact(*nodes: Node) -> bool:
    """Whether the operands are integers or bools, with which arithmetic does not round."""
    return not any(map(is_float, nodes))


# ---------------------------------------------------------------- sums


@rule
def double_negation(x: Node) -> Sides:
    return ops.negative(-x), x


@rule
def plus_nothing(x: Node) -> Sides:
    return x + -0.0, x


@rule
def minus_nothing(x: Node) -> Sides:
    return x - 0.0, x


@rule
def nothing_minus(x: Node) -> Sides:
    return -0.0 - x, -x


@rule
def plus_negation(x: Node, y: Node) -> Sides:
    return x + -y, x - y


@rule
def minus_negation(x: Node, y: Node) -> Sides:
    return x - -y, x + y


@rule(when=are_exact)
def difference_with_itself(x: Node) -> Sides:
    return x - x, 0


# ---------------------------------------------------------------- products


@rule
def times_one(x: Node) -> Sides:
    return x * 1, x


@rule
def times_minus_one(x: Node) -> Sides:
    return x * -1, -x


@rule(when=are_exact)
def times_zero(x: Node) -> Sides:
    return x * 0, 0


@rule
def product_of_negations(x: Node, y: Node) -> Sides:
    return -x * -y, x * y


@rule
def quotient_of_negations(x: Node, y: Node) -> Sides:
    return -x / -y, x / y


@rule
def over_one(x: Node) -> Sides:
    return x / 1, x


@rule
def over_minus_one(x: Node) -> Sides:
    return x / -1, -x


@rule
def one_over(x: Node) -> Sides:
    return 1 / x, ops.reciprocal(x)


def _is_power_of_two(x: Node, c: Node) -> bool:
    number = filled_with(c)
    if not number or math.isinf(number) or math.isnan(number):
        return False
    return abs(math.frexp(number)[0]) == 0.5 and is_normal(1 / number, c.dtype)


@rule(when=_is_power_of_two)
def over_a_power_of_two(x: Node, c: Node) -> Sides:
    return x / c, x * (1 / c)


@rule(when=are_exact, x="int32")
def floor_over_one(x: Node) -> Sides:
    return x // 1, x


@rule(when=are_exact, x="int32")
def remainder_of_one(x: Node) -> Sides:
    return x % 1, 0


# ---------------------------------------------------------------- powers


@rule
def power_zero(x: Node) -> Sides:
    return x**0, 1  # of NaN too


@rule(exact=False)
def power_one(x: Node) -> Sides:
    return x**1, x


@rule(exact=False)
def power_two(x: Node) -> Sides:
    return x**2, ops.square(x)


@rule(exact=False)
def power_minus_one(x: Node) -> Sides:
    return x**-1, ops.reciprocal(x)


@rule(exact=False, when=never_negative)
def power_half(x: Node) -> Sides:
    return x**0.5, ops.sqrt(x)  # of -0.0 they are 0.0 and -0.0, of -inf inf and NaN


@rule
def square_of_negation(x: Node) -> Sides:
    return ops.square(-x), ops.square(x)


@rule
def square_of_absolute(x: Node) -> Sides:
    return ops.square(abs(x)), ops.square(x)


@rule(when=lambda x: kind(x.dtype) != "u")
def absolute_of_negation(x: Node) -> Sides:
    return abs(-x), abs(x)


@rule(when=never_negative)
def absolute_of_positive(x: Node) -> Sides:
    return abs(x), x


@rule(when=never_negative)
def relu_of_positive(x: Node) -> Sides:
    return ops.relu(x), x


@rule_on(Rounding)
def rounding_of_integral(node: Node) -> Node | None:
    (x,) = node.inputs
    return x if is_integral(x) else None


# ---------------------------------------------------------------- choices and logic


@rule
def maximum_of_equals(x: Node) -> Sides:
    return ops.maximum(x, x), x


@rule
def minimum_of_equals(x: Node) -> Sides:
    return ops.minimum(x, x), x


@rule
def where_true(x: Node, y: Node) -> Sides:
    return ops.where(True, x, y), x


@rule
def where_false(x: Node, y: Node) -> Sides:
    return ops.where(False, x, y), y


@rule(c="bool")
def where_equals(c: Node, x: Node) -> Sides:
    return ops.where(c, x, x), x


@rule(c="bool", when=lambda c, x, y: is_bool(c))
def where_not(c: Node, x: Node, y: Node) -> Sides:
    return ops.where(ops.logical_not(c), x, y), ops.where(c, y, x)


@rule(c="bool")
def where_in_where(c: Node, x: Node, y: Node, z: Node) -> Sides:
    return ops.where(c, ops.where(c, x, y), z), ops.where(c, x, z)


@rule(c="bool")
def where_in_else(c: Node, x: Node, y: Node, z: Node) -> Sides:
    return ops.where(c, x, ops.where(c, y, z)), ops.where(c, x, z)


@rule
def double_not(x: Node) -> Sides:
    not_not = ops.logical_not(ops.logical_not(x))
    return not_not, x if is_bool(x) else ops.not_equal(x, 0)


@rule
def not_equal_to(x: Node, y: Node) -> Sides:
    return ops.logical_not(ops.equal(x, y)), ops.not_equal(x, y)


@rule
def not_unequal_to(x: Node, y: Node) -> Sides:
    return ops.logical_not(ops.not_equal(x, y)), ops.equal(x, y)


@rule
def logical_and_of_equals(x: Node) -> Sides:
    return ops.logical_and(x, x), x


@rule
def logical_or_of_equals(x: Node) -> Sides:
    return ops.logical_or(x, x), x


@rule
def logical_and_true(x: Node) -> Sides:
    return ops.logical_and(x, True), x


@rule
def logical_or_false(x: Node) -> Sides:
    return ops.logical_or(x, False), x


@rule(x="int32")
def and_of_equals(x: Node) -> Sides:
    return x & x, x


@rule(x="int32")
def or_of_equals(x: Node) -> Sides:
    return x | x, x


@rule(x="int32")
def exclusive_or_of_equals(x: Node) -> Sides:
    return x ^ x, 0


@rule(x="int32")
def and_zero(x: Node) -> Sides:
    return x & 0, 0


@rule(x="int32")
def or_zero(x: Node) -> Sides:
    return x | 0, x


@rule(x="int32")
def exclusive_or_zero(x: Node) -> Sides:
    return x ^ 0, x


@rule(x="int32")
def double_inversion(x: Node) -> Sides:
    return ~~x, x


# ---------------------------------------------------------------- attributes


@rule_on(Abs, Relu, Sign)
def done_twice(node: Node) -> Node | None:
    (x,) = node.inputs
    return x if x.op == node.op else None


@rule_on(Astype)
def cast(node: Node) -> Node | None:
    """Drop a cast to the dtype that is there, and one before another that loses nothing."""
    (x,) = node.inputs
    if x.dtype == node.dtype:
        return x
    if not isinstance(x.op, Astype):
        return None
    (origin,) = x.inputs
    first, last = origin.dtype, node.dtype
    # Floats that do not fit an integer are left open, so the two ways to cast them may differ.
    # 16-bit floats are made of integers by way of float32, which rounds twice.
    same_kind = is_float(origin) == is_float(x) and not (is_float(origin) and not is_float(node))
    direct = same_kind or last == BOOL or is_lossless(first, last)
    return ops.astype(origin, last) if is_lossless(first, x.dtype) and direct else None


@rule_on(StopGradient)
def stopped_gradient(node: Node) -> Node | None:
    """Drop what has done its work: gradients are part of the graph by now."""
    return node.inputs[0]


EXACT = (*folding.RULES, *broadcasting.RULES, *view.RULES, *rules_in(globals()))


def simplify(graph: Graph, notes: Notes) -> Graph:
    """Fold constants, compute before broadcasting, and drop what changes nothing.

    All at once, since each makes work for the others: what is folded may be a 1, and what remains
    of a product with 1 may be a view of a view.
    """
    return rewrite(graph, EXACT, notes)

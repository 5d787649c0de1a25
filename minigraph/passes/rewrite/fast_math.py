"""Rewrites that hold for ordinary numbers: not for NaN, infinities and the sign of zero.

Sums and products with several constants are regrouped, so results also change by rounding.  A
regrouped constant that left the range of its dtype would spoil ordinary results, so that is not
done.
"""

from __future__ import annotations

import math

from minigraph import ops
from minigraph.graph import Graph, Node
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.fact import filled_with, is_float, is_normal
from minigraph.passes.rewrite.rule import Sides, rewrite, rule, rules_in
from minigraph.passes.rewrite.simplification import EXACT


@rule
def difference_with_itself(x: Node) -> Sides:
    return x - x, 0


@rule
def quotient_with_itself(x: Node) -> Sides:
    return x / x, 1


@rule
def times_zero(x: Node) -> Sides:
    return x * 0, 0


@rule
def plus_zero(x: Node) -> Sides:
    return x + 0, x


@rule
def zero_minus(x: Node) -> Sides:
    return 0 - x, -x


@rule
def exponential_of_logarithm(x: Node) -> Sides:
    return ops.exp(ops.log(x)), x


@rule
def logarithm_of_exponential(x: Node) -> Sides:
    return ops.log(ops.exp(x)), x


@rule
def logarithm_near_one(x: Node) -> Sides:
    return ops.log(1 + x), ops.log1p(x)


@rule
def exponential_minus_one(x: Node) -> Sides:
    return ops.exp(x) - 1, ops.expm1(x)


@rule
def root_of_square(x: Node) -> Sides:
    return ops.sqrt(ops.square(x)), abs(x)


@rule
def root_of_product(x: Node) -> Sides:
    return ops.sqrt(x * x), abs(x)


@rule
def power_half(x: Node) -> Sides:
    return x**0.5, ops.sqrt(x)


# ---------------------------------------------------------------- constants that regroup


def _number(constant: Node) -> float:
    """Return the number that fills a constant; NaN for anything else."""
    number = filled_with(constant)
    return math.nan if number is None else number


def _fits(number: float, x: Node, zero: bool = False) -> bool:
    """Whether the dtype of x can hold the number that the constants beside it make."""
    if math.isnan(number):
        return False
    return not is_float(x) or is_normal(number, x.dtype) or (zero and number == 0)


def _sum_fits(x: Node, c: Node, d: Node) -> bool:
    return _fits(_number(c) + _number(d), x, zero=True)


def _difference_fits(x: Node, c: Node, d: Node) -> bool:
    return _fits(_number(c) - _number(d), x, zero=True)


@rule(when=lambda x, c: _fits(_number(c), x))
def minus_constant(x: Node, c: Node) -> Sides:
    return x - c, x + -c


@rule(when=_sum_fits)
def sum_with_constants(x: Node, c: Node, d: Node) -> Sides:
    return (x + c) + d, x + (c + d)


@rule(when=_sum_fits)
def difference_plus_constant(x: Node, c: Node, d: Node) -> Sides:
    return (c - x) + d, (c + d) - x


@rule(when=_difference_fits)
def constant_minus_sum(x: Node, c: Node, d: Node) -> Sides:
    return c - (x + d), (c - d) - x


@rule(when=_difference_fits)
def constant_minus_difference(x: Node, c: Node, d: Node) -> Sides:
    return c - (d - x), x + (c - d)


@rule(when=lambda x, c, d: _fits(_number(c) * _number(d), x))
def product_with_constants(x: Node, c: Node, d: Node) -> Sides:
    return (x * c) * d, x * (c * d)


@rule(when=lambda x, c: _number(c) != 0 and _fits(1 / _number(c), x))
def over_constant(x: Node, c: Node) -> Sides:
    return x / c, x * (1 / c)


RULES = rules_in(globals())


def relax(graph: Graph, notes: Notes) -> Graph:
    """Apply these rules, with those of `simplify` that they make room for."""
    return rewrite(graph, (*EXACT, *RULES), notes)

"""Rewrites that are not exact for NaN, infinities and signed zeros.

Sums and products with several constants are regrouped, so rounding changes, too.  Constants are not
combined if the result overflows or underflows, because that would change ordinary results.
"""

from __future__ import annotations

import math

from minigraph import ops
from minigraph.graph import Graph, Node
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.rule import filled_with, is_float, is_normal, rewrite, rules
from minigraph.passes.rewrite.simplification import EXACT, difference, zero_product


def _number(constant: Node) -> float:
    """Return the number that fills a constant; NaN for other nodes."""
    number = filled_with(constant)
    return math.nan if number is None else number


def _fits(number: float, x: Node, zero: bool = False) -> bool:
    """Whether the dtype of x can hold a number that was computed from constants.

    zero  whether 0 is allowed
    """
    if math.isnan(number):
        return False
    return not is_float(x) or is_normal(number, x.dtype) or (zero and number == 0)


RULES = (
    *rules(
        difference_with_itself=difference,
        times_zero=zero_product,
        quotient_with_itself=lambda x: (x / x, 1),
        plus_zero=lambda x: (x + 0, x),
        zero_minus=lambda x: (0 - x, -x),
        exponential_of_logarithm=lambda x: (ops.exp(ops.log(x)), x),
        logarithm_of_exponential=lambda x: (ops.log(ops.exp(x)), x),
        logarithm_near_one=lambda x: (ops.log(1 + x), ops.log1p(x)),
        exponential_minus_one=lambda x: (ops.exp(x) - 1, ops.expm1(x)),
        root_of_square=lambda x: (ops.sqrt(ops.square(x)), abs(x)),
        root_of_product=lambda x: (ops.sqrt(x * x), abs(x)),
        power_half=lambda x: (x**0.5, ops.sqrt(x)),  # they differ for -inf and -0.0
    ),
    *rules(lambda x, c: _fits(_number(c), x), minus_constant=lambda x, c: (x - c, x + -c)),
    *rules(
        lambda x, c, d: _fits(_number(c) + _number(d), x, zero=True),
        sum_with_constants=lambda x, c, d: ((x + c) + d, x + (c + d)),
        difference_plus_constant=lambda x, c, d: ((c - x) + d, (c + d) - x),
    ),
    *rules(
        lambda x, c, d: _fits(_number(c) - _number(d), x, zero=True),
        constant_minus_sum=lambda x, c, d: (c - (x + d), (c - d) - x),
        constant_minus_difference=lambda x, c, d: (c - (d - x), x + (c - d)),
    ),
    *rules(
        lambda x, c, d: _fits(_number(c) * _number(d), x),
        product_with_constants=lambda x, c, d: ((x * c) * d, x * (c * d)),
    ),
    *rules(
        lambda x, c: _number(c) != 0 and _fits(1 / _number(c), x),
        over_constant=lambda x, c: (x / c, x * (1 / c)),
    ),
)


def apply_fast_math(graph: Graph, notes: Notes) -> Graph:
    """Apply these rules and those of `simplify`, which may match their results."""
    return rewrite(graph, (*EXACT, *RULES), notes)

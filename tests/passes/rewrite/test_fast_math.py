"""Rewrites for ordinary numbers: each fires, and none spoils an ordinary result."""

import numpy as np
import pytest
from rewriting import INT, X, graph_of, run
from samples import draw

from minigraph import ops
from minigraph.graph import constant
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite import fast_math
from minigraph.passes.rewrite.common_subexpressions import share_common
from minigraph.passes.rewrite.fast_math import relax

RELAXED = {
    "x - x": (lambda x: x - x, lambda x: ops.broadcast_to(np.float32(0), x.shape), X),
    "x / x": (lambda x: x / x, lambda x: ops.broadcast_to(np.float32(1), x.shape), X),
    "0 * x": (lambda x: 0 * x, lambda x: ops.broadcast_to(np.float32(0), x.shape), X),
    "0 + x": (lambda x: 0 + x, lambda x: x, X),
    "0 - x": (lambda x: 0 - x, lambda x: -x, X),
    "exp of log": (lambda x: ops.exp(ops.log(x)), lambda x: x, X),
    "log of exp": (lambda x: ops.log(ops.exp(x)), lambda x: x, X),
    "log(x + 1)": (lambda x: ops.log(x + 1), ops.log1p, X),
    "exp(x) - 1": (lambda x: ops.exp(x) - 1, ops.expm1, X),
    "sqrt of square": (lambda x: ops.sqrt(ops.square(x)), abs, X),
    "sqrt of x * x": (lambda x: ops.sqrt(x * x), abs, X),
    "x ** 0.5": (lambda x: x**0.5, ops.sqrt, X),
    "(x * 2) * 3": (lambda x: 3 * (x * 2), lambda x: x * 6, X),
    "(x + 1) + 2": (lambda x: 2 + (1 + x), lambda x: x + 3, X),
    "(i * 2) * 3": (lambda i: (i * 2) * 3, lambda i: i * 6, INT),
    "(x - 1) + 1": (lambda x: (x - 1) + 1, lambda x: x, X),
    "(1 - x) + 2": (lambda x: (1 - x) + 2, lambda x: constant(np.float32(3)) - x, X),
    "2 - (x + 1)": (lambda x: 2 - (x + 1), lambda x: constant(np.float32(1)) - x, X),
    "2 - (1 - x)": (lambda x: 2 - (1 - x), lambda x: x + 1, X),
    "x / 3": (lambda x: x / 3, lambda x: x * np.float32(1 / 3), X),
    "x / 3 * 6": (lambda x: x / 3 * 6, lambda x: x * 2, X),
    "a long chain": (
        lambda x: sum(range(1, 9), x) * 2 / 4,
        lambda x: (x + 36) * 0.5,
        X,
    ),
}


@pytest.mark.parametrize("case", RELAXED.values(), ids=RELAXED)
def test_fast_math_makes_more_of_ordinary_numbers(case):
    before, after, *inputs = case
    graph, want = graph_of(before, *inputs), graph_of(after, *inputs)
    got, _ = run(relax, share_common(graph, Notes()))
    assert str(share_common(got, Notes())) == str(want)
    assert str(run(relax, got)[0]) == str(got)
    x = draw(inputs[0].dtype, (5, 30), 0.5, 3.0)
    np.testing.assert_allclose(got(x)[0], graph(x)[0], rtol=1e-5, atol=1e-6)


def test_every_rule_of_fast_math_fires_in_these_tests():
    seen = set()
    for before, _, *inputs in RELAXED.values():
        seen |= set(run(relax, share_common(graph_of(before, *inputs), Notes()))[1])
    assert {rule.name for rule in fast_math.RULES} <= seen


@pytest.mark.parametrize(
    "expression",
    [
        lambda x: x * 1e30 * 1e30,
        lambda x: x * 1e-30 * 1e-30,
        lambda x: x / 1e-40,
        lambda x: x + 3e38 + 3e38,
        lambda x: x / 0,
        lambda x: ops.log(2 + x),
    ],
    ids=["overflow", "underflow", "inverse of a tiny number", "large sum", "zero", "log(2 + x)"],
)
def test_fast_math_makes_no_constant_that_spoils_ordinary_results(expression):
    graph = share_common(graph_of(expression, X), Notes())
    assert run(relax, graph)[0].outputs[0] is graph.outputs[0]

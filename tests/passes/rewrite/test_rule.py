"""Matching a pattern, and applying rules to a whole graph."""

import dataclasses
import itertools
import operator

import numpy as np
from rewriting import INT, ROW, D, X, Y, optimized, run

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.ops.shape import PermuteDims, Reshape
from minigraph.ops.slicing import Flip
from minigraph.passes.rewrite import fast_math
from minigraph.passes.rewrite.rule import match, operand_orders, rewrite, rules
from minigraph.passes.rewrite.simplification import EXACT, simplify


def matches(before, variables, node):
    bindings = (match(pattern, node) for pattern in operand_orders(before))
    return [tuple(bound[x] for x in variables) for bound in bindings if bound is not None]


def test_a_pattern_matches_in_every_order():
    a, b, c = (mg.input(name, ()) for name in "abc")
    before, variables = a * b + c, (a, b, c)
    want = {(X, Y, ROW), (Y, X, ROW)}
    assert set(matches(before, variables, X * Y + ROW)) == want
    assert set(matches(before, variables, ROW + Y * X)) == want
    assert len(matches(before, variables, X * Y + X * ROW)) == 4


def test_a_variable_stands_for_one_node():
    a, b = mg.input("a", ()), mg.input("b", ())
    before = a * b - a
    assert matches(before, (a, b), X * Y - Y) == [(Y, X)]
    assert not matches(before, (a, b), X * Y - ROW)
    assert not matches(before, (a, b), X * Y - X * 1)


def test_a_node_with_more_operands_is_another():
    a, b = mg.input("a", (1,)), mg.input("b", (1,))
    before = ops.concat([a, b])
    assert matches(before, (a, b), ops.concat([X, Y])) == [(X, Y)]
    assert not matches(before, (a, b), ops.concat([X, Y, X]))


def test_a_constant_of_a_pattern_is_any_that_is_filled_with_it():
    a = mg.input("a", ())
    for one in (np.ones((5, 30)), ops.broadcast_to(np.ones((30,)), (5, 30)), np.float64(1)):
        assert matches(a * 1, (a,), D * one)
    for other in (np.arange(30.0), -np.ones(30), np.ones((1, 0))):
        assert not matches(a * 1, (a,), mg.input("d", (1, 1), "float64") * other)
    assert not matches(a + 0.0, (a,), X + -0.0)
    assert matches(a + -0.0, (a,), INT + 0)


def test_a_rule_finds_a_constant_behind_a_view():
    y = Y * ops.broadcast_to(np.ones((30,), "float32"), (5, 30))
    times_one = rules(times_one=lambda x: (x * 1, x))
    graph, fired = run(lambda g, notes: rewrite(g, times_one, notes), Graph((Y,), (y,)))
    assert graph.outputs[0] is Y and fired == {"times one": 1}


def test_what_a_rule_makes_takes_the_place_of_what_was_there():
    y = ops.square(-X)
    (new,) = run(simplify, Graph((X,), (y,)))[0].outputs
    assert (new.source, new.order[0]) == (y.source, y.order[0])


def test_outputs_may_become_inputs_and_parameters_and_one_another():
    p = mg.Parameter(np.ones(3, "float32"))
    outputs = (X * 1, ops.negative(-p), X, p, X + Y, Y / 1 + X, X * 0)
    result, _ = run(optimized, Graph((X, Y), outputs))
    assert all(map(operator.is_, result.outputs[:4], (X, p, X, p)))
    assert result.outputs[4] is result.outputs[5]


def test_the_work_is_linear_in_the_number_of_nodes():
    calls = 0

    def counted(rule):
        def apply(node):
            nonlocal calls
            calls += 1
            return rule.apply(node)

        return dataclasses.replace(rule, apply=apply)

    rules = list(map(counted, (*EXACT, *fast_math.RULES)))
    counts = []
    steps = (
        lambda y: ops.negative(-y),
        lambda y: y.T.T,
        lambda y: y * 1 + 2,
        lambda y: ops.exp(y) - 1,
        lambda y: ops.broadcast_to(y, (2, 3)) / 3,
    )
    for length in (500, 1000, 2000):
        x = y = mg.input("x", (2, 3))
        for step in itertools.islice(itertools.cycle(steps), length):
            y = step(y)
        calls = 0
        run(lambda graph, notes: rewrite(graph, rules, notes), Graph((x,), (y,)))
        counts.append(calls)
    assert counts[0] >= 500
    assert counts[2] - counts[1] <= 2.1 * (counts[1] - counts[0])


def test_depth_is_not_limited_by_the_stack():
    x = y = mg.input("x", (2, 3))
    for _ in range(2_000):
        y = PermuteDims((0, 1))(Reshape((2, 3))(Reshape((3, 2))(-Flip((0,))(y))))
    graph, _ = run(optimized, Graph((x,), (y,)))
    assert len(graph.order) == 4_001

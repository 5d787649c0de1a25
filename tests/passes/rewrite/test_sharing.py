"""Common subexpressions: what is equal is computed once, and nothing else is."""

import operator

import numpy as np
import pytest
from rewriting import X, Y, run

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph, constant
from minigraph.ops.batch_norm import BatchNorm
from minigraph.ops.slicing import Pad
from minigraph.passes.rewrite import common_subexpressions
from minigraph.passes.rewrite.common_subexpressions import share_common


def shared(*outputs):
    """The outputs, after equal nodes were made one."""
    return run(share_common, Graph((X, Y), outputs))[0].outputs


def test_equal_expressions_are_one():
    a, b, c = shared(ops.tanh(X * Y) + 1, 1 + ops.tanh(Y * X), 1 - ops.tanh(X * Y))
    assert a is b and c.inputs[1] is a.inputs[0]


def test_operands_that_do_not_commute_and_attributes_tell_expressions_apart():
    outputs = (X - Y, Y - X, X.sum(0), X.sum(1), ops.where(X > Y, X, Y), ops.where(Y > X, X, Y))
    assert len(set(shared(*outputs))) == len(outputs)


def test_constants_are_equal_if_their_bits_are():
    nan, also_nan, zero, minus_zero, double, integer, row = shared(
        *map(constant, np.float32([np.nan, np.nan, 0, -0.0])),
        constant(np.float64(0)),
        constant(np.int32(0)),
        constant(np.zeros(1, "float32")),
    )
    assert nan is also_nan and len({zero, minus_zero, double, integer, row}) == 5


def test_a_large_constant_is_equal_only_to_itself():
    large = np.zeros(common_subexpressions.LIMIT + 1, "int8")
    x, y = constant(large), constant(large)
    a, b, c, d = shared(x, y, -x, -x)
    assert a is not b and c is d


@pytest.mark.parametrize("kind", [float, np.float32])
def test_the_sign_of_a_zero_among_the_attributes_counts(kind):
    pads = [Pad((1, 1), (0, 0), (0, 0), kind(zero))(X) for zero in (0.0, -0.0, 0.0)]
    a, b, c = shared(*pads)
    assert a is c and a is not b


def test_parameters_and_inputs_of_one_name_differ():
    p, q = mg.Parameter(np.ones(3), "p"), mg.Parameter(np.ones(3), "p")
    x, y = mg.input("x", (3,)), mg.input("x", (3,))
    result, fired = run(share_common, Graph((x, y), (p, q, x * 2, y * 2)))
    assert len(set(result.outputs)) == 4 and fired == {"shared": 1}


def test_results_of_equal_ops_are_shared():
    w = mg.input("w", (30,))
    first, second = (BatchNorm(0.1).results(X, w, w) for _ in range(2))
    graph, _ = run(share_common, Graph((X, w), (*first, *second)))
    assert all(map(operator.is_, graph.outputs[:3], graph.outputs[3:]))
    assert len(graph.order) == 6


def test_the_node_made_first_stays():
    early = X * Y
    late = ops.exp(Y * X)
    exp, product = shared(late, early)
    assert product is early and exp.inputs[0] is early and exp.turn[0] == late.turn[0]

"""Common subexpressions: what is equal is computed once, and nothing else is."""

import numpy as np
from rewriting import X, Y, run

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph, constant
from minigraph.passes.rewrite import common_subexpressions
from minigraph.passes.rewrite.common_subexpressions import share_common


def shared(*outputs):
    """The outputs, after equal nodes were made one."""
    return run(share_common, Graph((X, Y), outputs))[0].outputs


def test_a_large_constant_is_equal_only_to_itself():
    large = np.zeros(common_subexpressions.LIMIT + 1, "int8")
    x, y = constant(large), constant(large)
    a, b, c, d = shared(x, y, -x, -x)
    assert a is not b and c is d


def test_parameters_and_inputs_of_one_name_differ():
    p, q = mg.Parameter(np.ones(3), "p"), mg.Parameter(np.ones(3), "p")
    x, y = mg.input("x", (3,)), mg.input("x", (3,))
    result, fired = run(share_common, Graph((x, y), (p, q, x * 2, y * 2)))
    assert len(set(result.outputs)) == 4 and fired == {"shared": 1}


def test_the_node_made_first_stays():
    early = X * Y
    late = ops.exp(Y * X)
    exp, product = shared(late, early)
    assert product is early and exp.inputs[0] is early and exp.order[0] == late.order[0]

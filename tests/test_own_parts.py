"""The solutions of docs/own.md pass the tests that CONTRIBUTING.md asks for."""

import functools
import re

import numpy as np
import own_op
import pytest
from needs import needs_both
from new_process import python
from rewriting import assert_becomes, assert_bits, graph_of, run

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import candidates
from minigraph.passes.rewrite.rule import rewrite

GENERIC = """
    ops/test_ops.py ops/test_derivatives.py ops/test_c_expressions.py
    jit/test_sixteen_bit.py passes/kernels/test_fusion.py
"""


def test_the_op_passes_the_generic_tests():
    chosen = ["-p", "own_op", "-k", "pseudo_huber or kink or op_joins or elementwise_infer"]
    files = [own_op.PAGE.parents[1] / "tests" / name for name in GENERIC.split()]
    printed, _ = python("-m", "pytest", "-n", "0", *chosen, *files)
    assert int(re.search(r"(\d+) passed", printed)[1]) >= 20


def test_the_op_is_exact_near_0_and_far_from_it():
    pseudo_huber = own_op.names_of(0)["pseudo_huber"]
    x = np.array([1e-4, -1e-10, 0.999, 1.001, -30, 1e20, np.inf], "float32")
    exact = x[:-1].astype("float64")
    expected = [*exact * exact / (1 + np.hypot(exact, 1)), np.inf]
    for device in ("reference", "cpu"):
        result = mg.comp_graph(device).compile([], pseudo_huber(mg.Parameter(x)))()
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_the_rule_fires_where_it_may_and_only_there():
    (rule,) = own_op.names_of(1)["mine"]
    x = mg.input("x", (5, 30))

    def by_rule(graph, notes):
        return rewrite(graph, [rule], notes)

    before = graph_of(lambda x: 1 - ops.sigmoid(x), x)
    close = functools.partial(np.testing.assert_allclose, atol=2e-7)
    assert_becomes(by_rule, before, graph_of(lambda x: ops.sigmoid(-x), x), close)
    for other in (lambda x: 2 - ops.sigmoid(x), lambda x: ops.sigmoid(x) - 1):
        assert not run(by_rule, graph_of(other, x))[1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_pass_swaps_once_changes_no_bit_and_leaves_alone_what_it_must(dtype):
    pool_first = own_op.names_of(2)["pool_first"]
    x = mg.input("x", (2, 3, 20, 30), dtype)
    before = graph_of(lambda x: ops.max_pool2d(ops.relu(x), 2), x)
    after = graph_of(lambda x: ops.relu(ops.max_pool2d(x, 2)), x)
    assert_becomes(pool_first, before, after, assert_bits)
    pooled = ops.max_pool2d(ops.relu(x), 2)
    for outputs in ([pooled, mg.grad(pooled.sum(), [x])[0]], [pooled, pooled.inputs[0].inputs[0]]):
        assert not run(pool_first, graph_of(lambda x, y=outputs: y, x))[1]
    assert not run(pool_first, graph_of(lambda x: ops.max_pool2d(ops.tanh(x), 2), x))[1]


@needs_both
@pytest.mark.parametrize("shapes", [((1, 1), (1, 2)), ((3, 5), (5, 7)), ((33, 64), (64, 17))])
def test_the_candidate_computes_the_product_up_to_the_last_element(shapes, monkeypatch):
    monkeypatch.setattr(candidates, "CANDIDATES", ())
    own_op.names_of(3)  # adds itself
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape, "float32") for shape in shapes)
    x[-1, -1] = np.nan
    inputs = [mg.input(name, array.shape) for name, array in (("x", x), ("y", y))]
    options = {"graph_opt_level": 3, "autotune": "exhaustive"}
    function = mg.comp_graph("cpu", options).compile(inputs, inputs[0] @ inputs[1])
    (algorithm,) = function.report().algorithms
    assert "three loops" in {rival.name for rival in algorithm.candidates}
    assert not any(rival.error for rival in algorithm.candidates)
    if algorithm.name == "three loops":
        np.testing.assert_allclose(function(x, y), x @ y, rtol=1e-5, atol=1e-5)

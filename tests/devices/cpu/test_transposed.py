"""Products of few rows and a large matrix, in rows or in columns."""

import numpy as np
import pytest
from needs import needs_both

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import candidates, onednn, transposed
from minigraph.devices.cpu import product as panels
from minigraph.devices.cpu.candidates import CpuProblems
from minigraph.ops.matmul import Matmul

pytestmark = needs_both
SUMS, COLUMNS = 1024, 1030


def product(rows, bias):
    """Return a product of `rows` rows and a matrix in columns, with its strides."""
    x = mg.input("x", (rows, SUMS))
    y = mg.input("y", (SUMS, COLUMNS))
    node = Matmul()(x, y, *([mg.input("b", (COLUMNS,))] if bias else []))
    return node, [x.spec.strides, (4, 4 * SUMS), *([(4,)] if bias else [])]


def candidate(node, strides):
    problem, layouts = CpuProblems(2, on_disk=False).tunable(node, strides)
    return next(c for c in problem.candidates(layouts) if c.name.endswith(transposed.SUFFIX))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 32])
def test_it_is_the_product_and_its_bias(rows, bias):
    rng = np.random.default_rng(0)
    node, strides = product(rows, bias)
    kernel = candidate(node, strides).kernel
    xs = [rng.normal(size=x.shape).astype("float32") for x in node.inputs]
    expected = xs[0].astype("float64") @ xs[1] + (xs[2] if bias else 0)
    stored = [xs[0], np.ascontiguousarray(xs[1].T).T, *xs[2:]]
    actual = np.full(node.shape, np.nan, "float32")
    kernel.run(stored, [actual], np.empty(kernel.scratch, np.uint8))
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_a_linear_layer_of_a_large_matrix_uses_it_also_with_constant_weights():
    rng = np.random.default_rng(0)
    w = mg.Parameter(rng.normal(size=(COLUMNS, SUMS)).astype("float32"))
    b = mg.Parameter(rng.normal(size=COLUMNS).astype("float32"))
    x = mg.input("x", (8, SUMS))
    batch = rng.normal(size=x.shape).astype("float32")
    cg = mg.comp_graph(options={"graph_opt_level": 2, "autotune": "off"})
    expected = batch.astype("float64") @ w.numpy().T + b.numpy()
    for freeze in (False, True):
        function = cg.compile([x], ops.linear(x, w, b), freeze=freeze)
        np.testing.assert_allclose(function(batch), expected, atol=1e-3)
        (algorithm,) = function.report().algorithms
        assert transposed.SUFFIX in algorithm.name


def test_one_row_begins_with_what_reads_the_matrix_in_place():
    problem, layouts = CpuProblems(2, on_disk=False).tunable(*product(1, bias=False))
    assert not next(iter(problem.candidates(layouts))).name.endswith(transposed.SUFFIX)


@pytest.mark.parametrize(("rows", "is_first"), [(1, False), (32, True), (65, False)])
def test_a_large_matrix_in_rows_is_read_in_panels(rows, is_first, monkeypatch):
    monkeypatch.setattr(candidates, "MIN_PANEL_MATRIX", SUMS * COLUMNS)
    monkeypatch.setattr(candidates, "MIN_PANEL_LANES", onednn.block())
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(rows, SUMS)), rng.normal(size=(SUMS, COLUMNS))
    inputs = mg.input("x", x.shape), mg.input("y", y.shape)
    cg = mg.comp_graph(options={"graph_opt_level": 2, "autotune": "off"})
    function = cg.compile(inputs, ops.relu(inputs[0] @ inputs[1]))
    np.testing.assert_allclose(function(x, y), np.maximum(x @ y, 0), atol=1e-3)
    (algorithm,) = function.report().algorithms
    assert (algorithm.name == panels.NAME) is is_first

"""Convolutions and products with fused ops on the CPU: one step, the same numbers."""

import numpy as np
import pytest
from heavy_nodes import CONVOLUTIONS, real
from needs import needs_both, needs_compiler
from products import CONV, PRODUCT, V4, V5, W, X, assert_same_values, drawn, function, statistics

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import compiler, onednn, walker
from minigraph.ops.conv import Conv2d
from minigraph.passes import levels
from minigraph.passes.library.convolution import fold_batch_norm, fuse_activation, fuse_bias


@pytest.fixture
def compiled(monkeypatch):
    """Compile a graph for the CPU: from level 2 on with library fusion, and nothing else."""
    passes = (fuse_bias, fold_batch_norm, fuse_activation)
    monkeypatch.setattr(levels, "TABLE", [levels.PassRow(rewrite, 2) for rewrite in passes])

    def compile_(graph, **options):
        cg = mg.comp_graph("cpu", {"graph_opt_level": 2, **options})
        return cg.compile(graph.inputs, list(graph.outputs))

    return compile_


def assert_one_step(step, name):
    report = step.report()
    assert report.ops == {name: 1}
    assert report.launches == len(report.steps) == 1
    assert report.steps[0][1].startswith(("onednn", "c panels"))


def samples(graph):
    """Yield arrays for a graph, then arrays with a few special values in the first."""
    yield drawn(graph)
    for value in (np.nan, np.inf, -np.inf):
        xs = drawn(graph)
        xs[0].flat[:: max(xs[0].size // 5, 1)] = value
        yield xs


@needs_both
@pytest.mark.parametrize("activation", [ops.relu, ops.tanh], ids=["relu", "tanh"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_with_bias_and_activation_is_one_step(case, activation, compiled):
    n, c, k, image, window, fields = CONVOLUTIONS[case]
    op = Conv2d(**fields)
    x, w = mg.input("x", (n, c, *image)), mg.input("w", (k, c // op.groups, *window))
    graph = function(activation(op(x, w) + mg.input("v", (k,)).reshape(k, 1, 1)))
    step = compiled(graph)
    assert_one_step(step, "conv2d")
    for xs in samples(graph):
        assert_same_values(graph, step, xs, 1e-4)  # tanh is steep where the sum's error is absolute


PRODUCTS = {
    "matrices": lambda x, w: (x((7, 5)), w((5, 9))),
    "transposed": lambda x, w: (x((5, 7)).T, w((9, 5)).T),
    "columns": lambda x, w: (x((7, 12))[:, 4:9], w((5, 20))[:, 3:12]),
    "steps": lambda x, w: (x((7, 10))[:, ::2], w((5, 9))),
    "one row": lambda x, w: (x((1, 5)), w((5, 9))),
    "one column": lambda x, w: (x((7, 5)), w((5, 1))),
    "batches": lambda x, w: (x((4, 1, 7, 5)), w((3, 5, 9))),
    "on two threads": lambda x, w: (x((200, 300)), w((300, 100))),
}


@needs_both
@pytest.mark.parametrize("case", PRODUCTS)
def test_a_product_with_bias_and_activation_is_one_kernel(case, compiled):
    x, w = PRODUCTS[case](lambda size: mg.input("x", size), lambda size: mg.input("w", size))
    graph = function(ops.relu(x @ w + mg.input("v", w.shape[-1:])))
    step = compiled(graph)
    steps = [kernel for name, kernel, _ in step.report().steps if name == "matmul"]
    assert len(steps) == 1
    with_vector = case in ("one row", "one column")  # a generated kernel may be faster there
    assert steps[0].startswith(("onednn", "c sum of products") if with_vector else "onednn")
    assert not step.report().ops["relu"] + step.report().ops["add"]
    for xs in samples(graph):
        assert_same_values(graph, step, xs)


@needs_both
def test_the_bias_itself_passes_special_values(compiled):
    for product, bias in ((CONV, V4.reshape(4, 1, 1)), (PRODUCT, V5)):
        graph = function(ops.relu(product + bias))
        step, xs = compiled(graph), drawn(graph)
        xs[2][:3] = np.nan, np.inf, -np.inf
        assert_same_values(graph, step, xs)


LONG = function(ops.relu(Conv2d()(X, W) + V4.reshape(4, 1, 1))), function(ops.tanh(PRODUCT + V5))


@pytest.mark.parametrize("graph", LONG, ids=["conv2d", "matmul"])
@pytest.mark.parametrize("missing", ["runtime", "kernels", "oneDNN"])
def test_where_something_is_missing_the_result_is_the_same(graph, missing, compiled, monkeypatch):
    if missing == "runtime":
        monkeypatch.setattr(walker, "load", lambda linker: None)
    elif missing == "kernels":
        functions = compiler.KERNELS.functions

        def the_walker_alone(sources, on_disk):
            addresses = functions(sources, on_disk)
            return {name: at if name == walker.WALKER.name else 0 for name, at in addresses.items()}

        monkeypatch.setattr(compiler.KERNELS, "functions", the_walker_alone)
    else:
        monkeypatch.setattr(onednn, "library", lambda: None)
    step = compiled(graph)
    assert_same_values(graph, step)
    assert len(step.report().steps) == 1


@needs_compiler
@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_products_of_other_types_are_exact(dtype, compiled):
    x, w, v = mg.input("x", (4, 3), dtype), mg.input("w", (3, 5), dtype), mg.input("v", (5,), dtype)
    graph = function(ops.relu(x @ w + v))
    step = compiled(graph)
    assert not step.report().numpy
    xs = [(real(*a.shape, seed=i) * 4).astype(dtype) for i, a in enumerate((x, w, v))]
    np.testing.assert_array_equal(step(*xs)[0], graph(*xs)[0])


def test_empty_arrays_stay_empty_and_sums_of_nothing_are_the_bias(compiled):
    for size, inner in ((0, 3), (4, 0)):
        x, w, v = mg.input("x", (size, inner)), mg.input("w", (inner, 5)), mg.input("v", (5,))
        graph = function(ops.relu(x @ w + v))
        assert_same_values(graph, compiled(graph))


@needs_both
def test_without_bulk_a_step_of_two_kernels_is_one_call(compiled):
    graph = function(ops.relu(ops.relu(PRODUCT) @ mg.input("c", (5, 2))))
    step = compiled(graph, bulk=False)
    assert step.report().launches == len(step.report().steps) == 2
    assert_same_values(graph, step)
    assert len(step.profile(*drawn(graph)).kernels) == 2


@needs_both
@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("biased", [False, True])
def test_a_convolution_with_a_folded_normalisation_is_one_heavy_step(case, biased, compiled):
    n, c, k, image, window, fields = CONVOLUTIONS[case]
    op = Conv2d(**fields)
    x, w = mg.input("x", (8 * n, c, *image)), mg.input("w", (k, c // op.groups, *window))
    vectors = [mg.input(name, (k,)) for name in ("weight", "bias", "mean", "var")]
    y = op(x, w, mg.input("v", (k,))) if biased else op(x, w)
    graph = function(ops.relu(ops.batch_norm(y, *vectors[2:], *vectors[:2])))
    step = compiled(graph)
    folded = w.size < y.size
    assert step.report().ops["batch_norm_inference"] == (not folded)
    assert step.report().ops["relu"] == (not folded)
    assert_same_values(graph, step, statistics(graph), 3e-5)

"""Arrays between kernels in mixed precision: `minigraph.passes.kernels.narrow_storage`."""

import numpy as np
import pytest
from small_functions import real

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph, Item
from minigraph.jit.fused import Fused
from minigraph.passes.levels import optimize, pipeline

SHAPE = (2, 4, 8, 8)


X = mg.input("x", SHAPE)
W = mg.Parameter(real(4, 4, 3, 3, seed=1) / 3, "w")
V = mg.Parameter(real(4, 4, 3, 3, seed=2) / 3, "v")


def conv(x, w):
    return ops.conv2d(x, w, padding=1)


def norm(x):
    running = np.zeros(4, "float32"), np.ones(4, "float32")
    return ops.batch_norm(x, *running, training=True)


def graphs(*ys, amp="bfloat16"):
    """Return the graph at level 3 before the pass, and after all passes."""
    stages = optimize(Graph((X,), ys), pipeline(3, False, 2, amp=amp))
    names = [record.name for _, record in stages]
    return stages[names.index("narrow_storage") - 1][0], stages[-1][0]


def between(graph):
    """Return the dtypes of images that generated kernels write, except for outputs."""
    kernels = (node for node in graph if isinstance(node.op, Fused | Item) and not node.is_bundle)
    images = (node for node in kernels if node.size >= 128 and node not in set(graph.outputs))
    return {node.dtype.name for node in images}


def check(before, after):
    """Assert that the graphs compute the same up to rounding to bfloat16."""
    x = real(*SHAPE)
    for want, result in zip(before(x), after(x), strict=True):
        assert want.dtype == result.dtype
        assert np.abs(want - result).max() <= 0.03 * np.abs(want).max()


def residual(x):
    y = ops.relu(norm(conv(x, W)))
    return ops.relu(norm(conv(y, V)) + y)


def test_what_is_made_of_convolutions_is_stored_in_the_small_type():
    y = residual(conv(X, W))
    loss = (conv(y, V) ** 2).mean()
    before, after = graphs(loss, *mg.grad(loss, [W, V]))
    assert "float32" in between(before)
    assert between(after) <= {"bfloat16", "bool"}
    assert [y.dtype for y in after.outputs] == [y.dtype for y in before.outputs]
    check(before, after)


def test_what_a_convolution_reads_and_another_kernel_too_is_one_array():
    y = ops.tanh(conv(X, W))
    before, after = graphs(ops.relu(conv(y, V) + y))
    written = [
        [spec.dtype.name for node in graph if "tanh" in str(node.op) for spec in node.specs]
        for graph in (before, after)
    ]
    assert written == [["float32", "bfloat16"], ["bfloat16"]]
    check(before, after)


def test_what_a_kernel_would_only_widen_and_round_again_is_passed_on():
    before, after = graphs(conv(ops.max_pool2d(conv(X, W), 2), V))
    casts = [[x.op.name for x in graph].count("astype") for graph in (before, after)]
    assert casts[0] - casts[1] == 2
    check(before, after)


def test_the_sum_of_what_a_product_reads_reads_it_too():
    p, q = (mg.Parameter(real(8, 8, seed=s), "p") for s in (3, 4))
    rows = ops.gelu(ops.reshape(X, (64, 8)) @ p)
    before, after = graphs(rows @ q, rows.sum(0), ops.exp(X).sum())
    written = [
        [spec.dtype.name for x in g if "erfc" in str(x.op) for spec in x.specs]
        for g in (before, after)
    ]
    assert written == [["float32", "bfloat16"], ["bfloat16"]]
    check(before, after)


def test_pooling_takes_and_gives_the_small_type():
    y = ops.max_pool2d(ops.relu(conv(X, W) * 2), 2)
    loss = (conv(y, V) ** 2).mean()
    before, after = graphs(loss, *mg.grad(loss, [W]))
    pools = [node for node in after if "pool" in node.name]
    assert {node.specs[0].dtype.name for node in pools} == {"bfloat16"} and len(pools) == 2
    check(before, after)


@pytest.mark.parametrize("pool", [lambda y: ops.max_pool2d(y, 2), lambda y: ops.avg_pool2d(y, 2)])
def test_a_pooled_result_of_the_function_has_its_own_type(pool):
    before, after = graphs(pool(ops.relu(conv(X, W) * 2)))
    assert [y.dtype.name for y in after.outputs] == ["float32"]
    check(before, after)


def test_results_of_the_function_stay_as_they_are():
    y = ops.relu(norm(conv(X, W)))
    before, after = graphs(y, conv(y, V))
    assert {y.dtype.name for y in after.outputs} == {"float32"}
    check(before, after)


def test_a_sum_with_an_array_of_float32_stays_float32():
    y = ops.relu(conv(X, W) + X)
    before, after = graphs(conv(y, V), ops.abs(y - 1).sum())
    assert str(after) == str(before)


def test_functions_that_lose_accuracy_give_float32():
    y = ops.exp(conv(X, W))
    before, after = graphs(conv(y, V), ops.abs(y - 1).sum((2, 3)))
    assert str(after) == str(before)


def test_gradients_that_float16_may_not_hold_stay_float32():
    loss = (conv(residual(conv(X, W)), V) ** 2).mean()
    before, after = graphs(loss, *mg.grad(loss, [W, V]), amp="float16")
    assert str(after) == str(before)

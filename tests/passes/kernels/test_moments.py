"""Variances in one run over their input: `minigraph.passes.kernels.moments`."""

from collections import Counter

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.jit.fused import Fused
from minigraph.ops.batch_norm import BatchNorm, batch_norm_with_statistics
from minigraph.ops.reduction import Sum
from minigraph.passes.kernels.decomposition import take_apart
from minigraph.passes.kernels.moments import join_moments
from minigraph.passes.levels import optimize, pipeline
from minigraph.passes.notes import Notes

SHAPE = (8, 2, 64, 64)  # whose sums have twice as many elements as the pass asks for
OPTIONS = {"graph_opt_level": 3, "autotune": "off"}


def joined(x, *ys):
    """Return the graph of expressions of x after the pass, and what it counted."""
    notes = Notes()
    before = take_apart(Graph((x,), ys), Notes())
    after = join_moments(before, notes)
    after.check()
    return after, notes.fired["variance"]


def norm(x):
    channels = np.ones(x.shape[1], "float32")
    return batch_norm_with_statistics(x, channels, channels * 0)


def sums(graph):
    return sum(node.op.name == "wide_sum" for node in graph)


def test_the_statistics_of_a_batch_norm_are_two_sums_that_wait_for_nothing():
    x = mg.input("x", SHAPE)
    graph, fired = joined(x, *norm(x))
    assert (fired, sums(graph)) == (1, 2)
    call = mg.comp_graph("cpu", OPTIONS).compile([x], norm(x))
    assert [kernel.ops.count("wide_sum") for kernel in call.report().kernels] == [2]


def test_columns_have_one_kernel_for_both_sums():
    x = mg.input("x", (16, 1, 20, 20, 64))
    vectors = [mg.input(name, (1, 64)) for name in ("weight", "bias")]
    y, mean, variance = BatchNorm(1e-5).results(x, *vectors)
    graph = Graph((x, *vectors), (ops.relu(y), mean * 2, variance * 2))
    final, _ = optimize(graph, pipeline(3, False, 2))[-1]
    fused = [node.op for node in final if isinstance(node.op, Fused)]
    assert [str(op).count("wide_sum") for op in fused if "wide_sum" in str(op)] == [2]
    assert len(fused) == 2


def test_sums_that_stay_in_the_cache_are_left_alone():
    x = mg.input("x", (4, 2, 8, 8))
    assert joined(x, *norm(x))[1] == 0


def test_columns_are_never_read_twice():
    x = mg.input("x", (100, 33))
    centred = x - x.mean(0)
    assert joined(x, Sum((0,))(centred * centred))[1] == 0  # no square
    assert joined(x, Sum((0,))(ops.square(x - Sum((0,))(x) / 100)))[1] == 1


def test_other_sums_of_squares_are_left_alone():
    x, y = mg.input("x", (100, 33)), mg.input("y", (100, 33))
    mean = Sum((0,))(x) / 100
    others = [
        Sum((0,))(ops.square(x - Sum((0,))(x) / 99)),
        Sum((0,))(ops.square(y - mean)),
        Sum((1,))(ops.square(x - mean)),
        Sum((0,))(ops.square(x - x[:1])),
    ]
    assert join_moments(Graph((x, y), tuple(others)), notes := Notes()) and not notes.fired


def test_an_element_of_what_is_computed_is_computed_from_elements():
    """Else what is computed would be stored for one element of each channel."""
    half, shift = mg.input("half", SHAPE, "float16"), mg.input("shift", (2, 1, 1))
    x = half.astype("float32") * 2 + shift
    graph = join_moments(take_apart(Graph((half, shift), norm(x)), Notes()), Notes())
    slices = [node for node in graph if node.op.name == "slice"]
    assert Counter(str(node.inputs[0].op) for node in slices) == {"input half": 3, "input shift": 3}
    long = ops.exp(x)
    for _ in range(10):
        long = ops.tanh(long)
    graph = join_moments(take_apart(Graph((half, shift), norm(long)), Notes()), Notes())
    assert sums(graph) == 0


@pytest.mark.parametrize("mean", [0.0, 10.0, 1e3, -1e5])
@pytest.mark.parametrize("shape", [SHAPE, (16, 3, 40, 40)])
def test_statistics_are_those_of_float64_however_far_the_mean_is_from_0(mean, shape):
    x = (np.random.default_rng(0).normal(size=shape) + mean).astype("float32")
    given = mg.input("x", shape)
    _, found, variance = mg.comp_graph("cpu", OPTIONS).compile([given], norm(given))(x)
    exact = x.astype("float64")
    np.testing.assert_allclose(found, exact.mean((0, 2, 3)), 2e-7, 1e-6)
    # A variance is around the mean as it is rounded.
    np.testing.assert_allclose(
        variance, exact.var((0, 2, 3)), 1e-6, float(np.spacing(np.float32(abs(mean)))) ** 2
    )


@pytest.mark.parametrize("place", [(2, 16), (4, 32), (6, 48)])
@pytest.mark.parametrize("odd", [100, -1e4, 1e18])
def test_an_outlier_among_the_elements_that_are_taken_costs_no_accuracy(odd, place):
    x = np.random.default_rng(0).normal(size=SHAPE).astype("float32")
    image, middle = place
    x[image, :, middle, middle] = odd
    given = mg.input("x", SHAPE)
    _, mean, variance = mg.comp_graph("cpu", OPTIONS).compile([given], norm(given))(x)
    exact = x.astype("float64")
    np.testing.assert_allclose(mean, exact.mean((0, 2, 3)), 1e-6, 1e-6)
    np.testing.assert_allclose(variance, exact.var((0, 2, 3)), 1e-5)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("place", [(0, 0, 0), (4, 32, 32)])
def test_special_values_give_what_level_0_gives(value, place):
    x = np.random.default_rng(0).normal(size=SHAPE).astype("float32")
    n, h, w = place
    x[n, 0, h, w] = value
    given = mg.input("x", SHAPE)
    got, want = (
        mg.comp_graph("cpu", {**OPTIONS, "graph_opt_level": level}).compile([given], norm(given))(x)
        for level in (3, 0)
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        np.testing.assert_allclose(a, b, 1e-4, 1e-4)


def test_channels_of_equal_numbers_have_no_variance():
    x = np.full(SHAPE, 1e4 / 3, "float32")
    given = mg.input("x", SHAPE)
    y, _, variance = mg.comp_graph("cpu", OPTIONS).compile([given], norm(given))(x)
    assert not variance.any() and not y.any()

"""Random numbers: their words, moments and bounds, and what they depend on."""

import itertools

import numpy as np
import pytest
from op_values import F32, F64

import minigraph as mg
from minigraph import ops
from minigraph.graph import FLOATS, Graph
from minigraph.ops.random import SEED, STEP, number_streams, philox


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB],
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, words):
    low, high, step, stream = counter
    index = np.array([low | high << 32], np.uint64)
    a, b = philox(index, key[0] | key[1] << 32, step, stream)
    assert [int(a[0]), int(b[0])] == words


def drawn(y, seed=0, step=0):
    """The value of an expression with random ops, numbered as a compiled function has them."""
    graph = number_streams(Graph((SEED, STEP), (y,)))
    return graph(np.uint64(seed), np.uint64(step))[0]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_numbers_have_the_moments_of_their_distribution(dtype):
    u = drawn(ops.random_uniform((200, 500), dtype=dtype)).astype(F64)
    z = drawn(ops.random_normal((200, 500), dtype=dtype)).astype(F64)
    assert u.min() >= 0
    assert u.max() < 1
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        assert abs((u**power).mean() - 1 / (power + 1)) < 0.005
        assert abs((z**power).mean() - moment) < 0.05
    for x in (u, z):
        assert abs(np.corrcoef(x[:, :-1].ravel(), x[:, 1:].ravel())[0, 1]) < 0.01


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("low", "high"), [(1, 2), (2, 1), (-3, 5)])
def test_uniform_numbers_do_not_round_to_the_upper_bound(low, high, dtype):
    u = drawn(ops.random_uniform((100_000,), low, high, dtype)).astype(F64)
    assert u.dtype == F64
    assert min(low, high) <= u.min()
    assert u.max() <= max(low, high)
    assert not (u == high).any()


def test_random_numbers_are_shifted_and_scaled():
    u = drawn(ops.random_uniform((1000,), -2, 3))
    np.testing.assert_allclose(u, drawn(ops.random_uniform((1000,))) * 5 - 2, rtol=1e-6, atol=1e-6)
    z = drawn(ops.random_normal((1000,), 4, 0.5, "float64"))
    np.testing.assert_allclose(z, drawn(ops.random_normal((1000,), dtype="float64")) * 0.5 + 4)


@pytest.mark.parametrize("draw_some", [ops.random_uniform, ops.random_normal])
def test_random_numbers_depend_on_seed_step_and_stream_and_on_nothing_else(draw_some):
    first = drawn(draw_some((64,)))
    np.testing.assert_array_equal(drawn(draw_some((64,))), first)
    np.testing.assert_array_equal(drawn(draw_some((8, 8))).ravel(), first)
    np.testing.assert_array_equal(drawn(draw_some((100,)))[:64], first)
    np.testing.assert_array_equal(drawn(draw_some((64,)) + mg.Parameter(0.0)), first)
    others = [
        drawn(draw_some((64,)), seed=1),
        drawn(draw_some((64,)), seed=2**32),
        drawn(draw_some((64,)), step=1),
        drawn(ops.stack([draw_some((64,)), draw_some((64,))]))[1],
    ]
    for i, j in itertools.combinations([first, *others], 2):
        assert not np.any(i == j)


def test_dropout_drops_and_scales():
    x = np.ones((100, 100), F32)
    y = drawn(ops.dropout(x, 0.25))
    assert set(np.unique(y)) == {0, F32.type(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.02
    assert y.dtype == F32
    node = mg.input("x", x.shape)
    assert ops.dropout(node, 0) is node
    assert ops.dropout(node, 0.5, training=False) is node
    np.testing.assert_array_equal(drawn(ops.dropout(x, 1)), 0 * x)

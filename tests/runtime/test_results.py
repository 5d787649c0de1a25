"""Whose memory a result is."""

import itertools

import numpy as np
import pytest
from small_functions import increment

import minigraph as mg


def test_changing_an_argument_after_the_call_changes_nothing(cg):
    x, w = mg.input("x", (3,)), mg.Parameter(np.zeros(3, "float32"), "w")
    step = cg.compile([x], [x, x[::-1], x + 1], {w: x})
    array = np.array([1, 2, 3], np.float32)
    results = step(array)
    array[...] = 0
    np.testing.assert_array_equal(results, [[1, 2, 3], [3, 2, 1], [2, 3, 4]])
    np.testing.assert_array_equal(w.numpy(), [1, 2, 3])


def by_torch(y):
    return pytest.importorskip("torch").from_numpy(y)


def strided(y):
    return np.lib.stride_tricks.as_strided(y, (2, 2), (y.itemsize, y.itemsize))


WAYS_TO_KEEP = {
    "itself": lambda y: y,
    "slice": lambda y: y[500:],
    "view of a view": lambda y: y[::2][::2].T,
    "other dtype": lambda y: y.view(np.uint32),
    "subclass": lambda y: np.ma.masked_array(y),
    "strides": strided,
    "memoryview": memoryview,
    "buffer": lambda y: np.frombuffer(y, np.float32),
    "DLPack": np.from_dlpack,
    "torch": by_torch,
}


@pytest.mark.parametrize("way", WAYS_TO_KEEP)
def test_a_result_is_not_overwritten_while_any_part_of_it_is_kept(cg, way):
    x = mg.input("x", (1000,))
    function = cg.compile([x], [x + 1, x * 2])
    kept = []
    for i in range(20):
        first, second = function(np.full(1000, i, np.float32))
        if i % 3 == 0:
            kept.append((WAYS_TO_KEEP[way](first), i + 1))
        elif i % 3 == 1:
            kept.append((WAYS_TO_KEEP[way](second), i * 2))
        del first, second
    for part, value in kept:
        assert set(np.asarray(part).view(np.float32).ravel().tolist()) == {value}


@pytest.mark.parametrize("seed", range(5))
def test_results_are_not_overwritten_in_whatever_order_they_are_dropped(cg, seed):
    rng = np.random.default_rng(seed)
    x = mg.input("x", (50,))
    function = cg.compile([x], [x + 1, (x * 2).reshape(5, 10), x.sum(), x[::2], x + 1])
    kept = []
    for i in range(100):
        results = function(np.full(50, i, np.float32))
        expected = [i + 1, 2 * i, 50 * i, i, i + 1]
        kept.extend(zip(results, expected, strict=True))
        del results
        for at in sorted(rng.choice(len(kept), len(kept) // 2, replace=False))[::-1]:
            del kept[at]
        for y, value in kept:
            assert (y == value).all()


def test_a_result_may_be_the_next_argument(cg):
    x = mg.input("x", (1000,))
    function = cg.compile([x], [x[::-1] + 1, x])
    y = np.arange(1000, dtype=np.float32)
    expected = y.copy()
    for _ in range(10):
        y, before = function(y)
        np.testing.assert_array_equal(before, expected)
        expected = expected[::-1] + 1
        np.testing.assert_array_equal(y, expected)
        y = function(function(y)[0])[0]
        expected = (expected[::-1] + 1)[::-1] + 1
        np.testing.assert_array_equal(y, expected)


def test_results_of_two_functions_share_no_memory(cg):
    x = mg.input("x", (1000,))
    one, other = cg.compile([x], x + 1), cg.compile([x], x + 1)
    results = [f(np.full(1000, i)) for i, f in enumerate([one, other] * 5)]
    for i, y in enumerate(results):
        np.testing.assert_array_equal(y, np.full(1000, i + 1))
    assert not any(np.shares_memory(a, b) for a, b in itertools.combinations(results, 2))


def test_a_result_outlives_its_function(cg):
    y = increment(cg, (1000,))(np.ones(1000))
    np.testing.assert_array_equal(y, np.full(1000, 2))

"""Random numbers of calls: the seed, the number of the call, and their distribution."""

import numpy as np
import pytest
from small_functions import DEVICES

import minigraph as mg
from minigraph import ops


def dropout(device, seed=0, size=4096, p=0.5):
    x = mg.input("x", (size,))
    graph = mg.comp_graph(device, options={"seed": seed})
    return graph.compile([x], ops.dropout(x, p))


def masks(function, count=1, size=4096):
    return np.array([function(np.ones(size)) for _ in range(count)])


def test_the_same_seed_gives_the_same_masks_on_every_device_and_in_every_function():
    first = masks(dropout("reference", seed=3), 3)
    for device in DEVICES:
        np.testing.assert_array_equal(masks(dropout(device, seed=3), 3), first)


@pytest.mark.parametrize("draw", [ops.random_uniform, ops.random_normal])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_seed_gives_the_same_numbers_on_every_device(draw, dtype):
    functions = [mg.comp_graph(d).compile([], draw((1000,), dtype=dtype)) for d in DEVICES]
    for _ in range(2):
        first, *others = (function() for function in functions)
        for other in others:  # logarithm and cosine may differ in the last bit
            np.testing.assert_allclose(first, other, rtol=1e-5, atol=1e-6)


def test_setting_calls_replays_a_call(cg):
    function = dropout(cg.device)
    drawn = masks(function, 5)
    assert function.calls == 5
    for k in (3, 0, 4):
        function.calls = k
        np.testing.assert_array_equal(masks(function)[0], drawn[k])
        assert function.calls == k + 1
    resumed = dropout(cg.device)
    resumed.calls = 3
    np.testing.assert_array_equal(masks(resumed, 2), drawn[3:])


@pytest.mark.parametrize("seeds", [(0, 1), (1, 2), (1, 2**32 + 1), (0, 2**63), (5, 2**64 - 1)])
def test_another_seed_draws_other_numbers(cg, seeds):
    one, other = (masks(dropout(cg.device, seed))[0] for seed in seeds)
    assert not np.array_equal(one, other)


def test_two_random_ops_of_a_function_draw_different_numbers(cg):
    a, b = cg.compile([], [ops.random_uniform((1000,)), ops.random_uniform((1000,))])()
    assert not np.array_equal(a, b)


def test_a_random_expression_that_is_read_twice_is_drawn_once(cg):
    u = ops.random_uniform((1000,))
    a, b, difference = cg.compile([], [u, u + 0, u - u])()
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(difference, np.zeros(1000))


def test_other_work_in_a_function_does_not_change_what_is_drawn(cg):
    x = mg.input("x", (1000,))
    alone = cg.compile([x], ops.dropout(x))(np.ones(1000))
    beside = cg.compile([x], [ops.dropout(x), x + 1, (x * 2).sum()])(np.ones(1000))[0]
    np.testing.assert_array_equal(alone, beside)


def test_the_gradient_of_dropout_has_its_mask(cg):
    x = mg.input("x", (1000,))
    y = ops.dropout(x, 0.3)
    (dx,) = mg.grad(y.sum(), [x])
    kept, gradient = cg.compile([x], [y, dx])(np.ones(1000))
    np.testing.assert_array_equal(kept, gradient)

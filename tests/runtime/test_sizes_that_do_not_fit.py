"""Calls whose sizes do not fit: most of their errors are in `tests/wrong_calls/sizes.txt`."""

import numpy as np
import pytest
from sized import real

import minigraph as mg
from minigraph import nn, ops


@pytest.fixture
def mean():
    x, y = mg.input("x", (None, 3)), mg.input("y", (None,))
    return mg.comp_graph().compile([x, y], [x.mean() + y.sum()])


def message(function, *args):
    with pytest.raises(mg.ShapeError) as error:
        function(*args)
    assert "\n" not in str(error.value)
    assert __file__ in str(error.value)
    return str(error.value)


def test_the_known_sizes_are_checked(mean):
    for _ in range(2):  # of a size that is new, and of one that is kept
        text = message(mean, np.ones((2, 4)), np.ones(2))
        assert "input x takes float32[batch,3], got shape (2, 4)" in text
        mean(np.ones((2, 3)), np.ones(2))
    assert len(mean.reports()) == 1


def test_sizes_that_are_multiples_come_back_after_halving_and_doubling():
    down = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.MaxPool2d(2))
    up = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Upsample(scale_factor=2))
    x = mg.input("x", (None, 2, "4*rows", "4*columns"))
    labels = mg.input("labels", (None, 2, "4*rows", "4*columns"))
    y = ops.concat([up(down(x)), x], axis=1)
    assert y.shape == (x.shape[0], 6, *x.shape[2:])
    assert ops.adaptive_avg_pool2d(x, 4).shape[2:] == (4, 4)
    function = mg.comp_graph("reference").compile([x, labels], [y, ops.mse_loss(x, labels)])
    for size in ((4, 12), (8, 8)):
        image = real(1, 2, *size)
        result, loss = function(image, image)
        np.testing.assert_array_equal(result[:, 4:], image)
        assert loss == 0
    small, other = real(1, 2, 6, 8), real(1, 2, 8, 12)
    assert "takes float32[batch,2,4*rows,4*columns], got shape" in message(function, small, small)
    assert "has 3 as its size columns" in message(function, real(1, 2, 8, 8), other)


def test_an_input_of_a_size_that_follows_from_another():
    x = mg.input("x", (None, 2, None, None))
    small = ops.max_pool2d(x, 2)
    target = mg.input("target", small.shape)
    function = mg.comp_graph("reference").compile([x, target], ops.mse_loss(small, target))
    assert function(np.zeros((1, 2, 9, 8)), np.ones((1, 2, 4, 4))) == 1
    text = message(function, np.zeros((1, 2, 9, 8)), np.ones((1, 2, 4, 5)))
    assert "where (size3 // 2) is 4, got shape (1, 2, 4, 5)" in text
    alone = mg.comp_graph("reference").compile([target], target * 2)
    assert "no input has the size size2 itself" in message(alone, np.ones((1, 2, 4, 4)))


def test_a_size_over_two_is_a_float_as_in_python():
    x = mg.input("x", ("2*pairs",), "int32")
    half = x.shape[0] / 2
    assert (x * half).dtype == np.float64
    numbers = ops.arange(0, half, 0.5)
    assert numbers.dtype == np.float32
    assert mg.comp_graph("reference").compile([x], numbers)(np.ones(4, np.int32)).size == 4

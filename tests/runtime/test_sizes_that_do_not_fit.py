"""Calls whose sizes do not fit are errors of one line, which names the place."""

import re

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


def test_sizes_of_one_name_are_equal_in_a_call(mean):
    text = message(mean, np.ones((4, 3)), np.ones(5))
    assert "input y has 5 as its size batch, input x has 4" in text
    assert 'mg.input("y", ("batch2", ...))' in text


@pytest.mark.parametrize("shape", [(2, 4), (3,), (2, 3, 1)])
def test_a_shape_that_does_not_fit_is_named(mean, shape):
    assert f"input x takes float32[batch,3], got shape {shape}" in message(
        mean, np.ones(shape), np.ones(2)
    )


def test_the_known_sizes_are_checked(mean):
    for _ in range(2):  # of a size that is new, and of one that is kept
        text = message(mean, np.ones((2, 4)), np.ones(2))
        assert "input x takes float32[batch,3], got shape (2, 4)" in text
        mean(np.ones((2, 3)), np.ones(2))
    assert len(mean.reports()) == 1


@pytest.mark.parametrize("n", [2, None])
def test_images_whose_channels_come_last_are_told_from_others(n):
    x = mg.input("x", (n, 3, 4, 5))
    function = mg.comp_graph("reference").compile([x], x + 1)
    assert message(function, np.ones((2, 4, 5, 3))).endswith("images.transpose(0, 3, 1, 2)")
    assert "transpose" not in message(function, np.ones((2, 4, 6, 3)))


@pytest.mark.parametrize("value", [None, [[1, "a"]], [[1, 2], [3]]])
def test_what_is_no_array_is_named_by_its_input(mean, value):
    with pytest.raises(mg.DTypeError, match=r"^input x takes float32\[batch,3\]: .* at "):
        mean(value, np.ones(2))


def test_a_size_that_an_op_cannot_have_is_named_with_its_line():
    x = mg.input("x", (None, 2, 8))
    step = mg.comp_graph().compile([x], nn.BatchNorm1d(16)(ops.flatten(x, 1)))
    assert step(real(2, 2, 8)).shape == (2, 16)
    text = message(step, real(1, 2, 8))
    assert "statistics of (1, 16) need more than one value per channel" in text


@pytest.mark.parametrize(
    ("network", "shape", "text"),
    [
        (nn.MaxPool2d(4), (1, 2, 3, 8), "max_pool2d: a window of 4 does not fit 3 pixels"),
        (nn.ReflectionPad2d(3), (1, 2, 3, 8), "an axis of 3 elements takes a border of mode 'refl"),
        (nn.Upsample(scale_factor=0.25), (1, 2, 3, 8), "an axis of 3 would have 0 elements"),
        (
            nn.ConvTranspose2d(2, 2, 1, padding=2),
            (1, 2, 3, 8),
            r"conv2d_backward_data: the result would have \(-1, 4\) pixels",
        ),
    ],
)
def test_images_too_small_are_an_error_of_the_call_with_the_line_of_the_layer(network, shape, text):
    x = mg.input("x", (None, 2, None, None))
    function = mg.comp_graph("reference").compile([x], network(x))
    assert re.search(text, message(function, real(*shape)))
    assert "test_sizes_that_do_not_fit.py" in message(function, real(*shape))


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
        found, loss = function(image, image)
        np.testing.assert_array_equal(found[:, 4:], image)
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


def size_of(x):
    return x.shape[0]


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (lambda x: ops.zeros(size_of(x) - 5), r"float32\[-2\] .*rows - 5 is -2 where rows is 3"),
        (lambda x: ops.full((2, size_of(x) - 5), 7.0), "rows - 5 is -2"),
        (lambda x: ops.random_uniform((size_of(x) - 5,)), "random_uniform: .*rows - 5 is -2"),
        (lambda x: ops.one_hot([0, 1], size_of(x) - 5), "one_hot: .*rows - 5 is -2"),
        (lambda x: ops.linspace(0, 1, size_of(x) - 5), "linspace: .*rows - 5 is -2"),
        (lambda x: ops.eye(size_of(x) - 5), "eye: .*rows - 5 is -2"),
        (lambda x: ops.repeat(x, size_of(x) - 5, 0), "rows - 5 is -2"),
        (lambda x: ops.topk(x, size_of(x) - 5, 0)[1], "rows - 5 is -2"),
        (lambda x: ops.scan(lambda c, _: (c, None), x, None, size_of(x) - 5)[0], "rows - 5 is -2"),
        (lambda x: ops.zeros(size_of(x) * 10**20), "is an integer up to"),
        (lambda x: x * (size_of(x) - 8) ** 0.5, "no finite number where rows is 3"),
        (lambda x: x * (8 // (size_of(x) - 3)), r"\(8 // \(rows - 3\)\) has no value .*division"),
        (lambda x: ops.ones(8 % (size_of(x) - 3)), "has no value .*division"),
        (lambda x: x[-4], "index -4 is out of range for an axis of length 3"),
        (lambda x: x[3], "index 3 is out of range for an axis of length 3"),
        (lambda x: x[size_of(x) - 100], "index -97 is out of range for an axis of length 3"),
        (lambda x: x[:, size_of(x)], "index 3 is out of range for an axis of length 2"),
        (lambda x: x[3:].mean(), r"mean over axes \(0, 1\) of shape \(0, 2\): no elements"),
        (lambda x: ops.mse_loss(x[3:], -x[3:]), "mean .*no elements"),
        (lambda x: ops.softmax(x[5:], 0), r"axis 0 of shape \(0, 2\) has no elements"),
        (lambda x: ops.max(x[3:], 0), "no elements"),
        (lambda x: ops.adaptive_avg_pool2d(x[None, None, 3:], 1), "window of 0 does not fit 0 pix"),
        (
            lambda x: ops.topk([1.0, 2.0], size_of(x))[0],
            r"axis 0 of shape \(2,\) has no 3 elements",
        ),
        (lambda x: x[:5] * np.ones((5, 1)), r"shapes \(3, 2\) and \(5, 1\) do not broadcast"),
        (lambda x: x[:5].reshape(10), r"6 elements do not fit shape \(10,\)"),
        (lambda x: ops.gather(x[:5], 1, ops.zeros((5, 2), "int64")), "only axis 1 differs"),
    ],
)
def test_what_a_size_computes_is_a_size_or_an_error_of_the_call(expression, text):
    x = mg.input("x", ("rows", 2))
    function = mg.comp_graph("reference").compile([x], expression(x))
    assert re.search(text, message(function, real(3, 2)))


@pytest.mark.parametrize(("dtype", "factor"), [("int8", 100), ("uint8", -1), ("int32", 2**40)])
def test_a_size_that_does_not_fit_into_the_type_of_an_array_is_an_error(dtype, factor):
    x = mg.input("x", (None,), dtype)
    function = mg.comp_graph("reference").compile([x], x + x.shape[0] * factor)
    with pytest.raises(mg.DTypeError, match=f"{3 * factor} does not fit into {dtype} at "):
        function(np.ones(3, dtype))


def test_a_size_over_two_is_a_float_as_in_python():
    x = mg.input("x", ("2*pairs",), "int32")
    half = x.shape[0] / 2
    assert (x * half).dtype == np.float64
    for use in (ops.zeros, lambda n: x[n], lambda n: x[:n], lambda n: ops.eye(3, n)):
        with pytest.raises(mg.ShapeError, match="integer"):
            use(half)
    numbers = ops.arange(0, half, 0.5)
    assert numbers.dtype == np.float32
    assert mg.comp_graph("reference").compile([x], numbers)(np.ones(4, np.int32)).size == 4


def test_images_of_any_size():
    x = mg.input("x", (None, 3, None, None))
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU())
    function = mg.comp_graph().compile([x], ops.mean(net(x), (2, 3)))
    for shape in ((2, 3, 8, 8), (1, 3, 9, 12)):
        assert function(real(*shape)).shape == (shape[0], 4)
    assert "conv2d: " in message(function, real(1, 3, 1, 8))


def test_a_deviation_of_too_few_values_is_an_error_of_the_call():
    x = mg.input("x", (None,))
    function = mg.comp_graph("reference").compile([x], ops.std(x, correction=1))
    assert function([1.0, 2.0]) == pytest.approx(0.5**0.5)
    text = message(function, [1.0])
    assert "var over axes (0,) of shape (1,) with correction 1" in text
    assert "from_sizes" not in text


def test_an_index_out_of_range_along_such_an_axis_is_an_error_of_the_call():
    x = mg.input("x", (None, 3))
    function = mg.comp_graph("reference").compile([x], x[[0, 2]])
    assert function(real(3, 3)).shape == (2, 3)
    with pytest.raises(mg.GraphError, match=r"index 2 at \(1,\) is not in -2 \.\.\. 1"):
        function(real(2, 3))

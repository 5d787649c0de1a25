"""The errors of Winograd's algorithm: NaN, infinities, and pixels of very different size."""

import itertools

import numpy as np
import pytest
from blocked_cases import ODD_SIZES, Case, assert_near, computed, every_way, every_window, in_blocks
from laid_out import drawn, meaning
from needs import needs_both

from minigraph.devices.cpu import onednn
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import pack, unpack, unpacked

pytestmark = needs_both


def overlap(inputs, outputs, tap, padding):
    """Return which inputs meet which outputs at a tap, as slices."""
    begin = max(padding - tap, 0)
    end = max(min(outputs, inputs + padding - tap), begin)
    return slice(begin + tap - padding, end + tap - padding), slice(begin, end)


def taps(x, y, padding, window):
    """Yield each tap of a window, with the pixels of x and of y that meet at it."""
    for tap in itertools.product(range(window), repeat=2):
        axes = map(overlap, x.shape[2:], y.shape[2:], tap, padding)
        there, here = zip(*axes, strict=True)
        yield tap, x[..., *there], y[..., *here]


# Where in images, or in weights at a like place, there are odd values.
PLACES = {
    "corner": [(0, 0, 0, 0, 3)],
    "last-corner": [(-1, -1, -1, -1, -1)],
    "inside": [(1, 0, 4, 5, 0)],
    "side-by-side": [(0, 0, 4, 4, 1), (0, 0, 4, 5, 1)],
    "far-apart": [(0, 0, 1, 1, 2), (1, 0, 8, 3, 2)],
}
ODD = [[np.nan, np.nan], [np.inf, np.inf], [-np.inf, -np.inf], [np.inf, -np.inf]]


@every_way
@every_window
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_and_infinity_are_where_a_direct_convolution_has_them(operand, places, window, way):
    node = in_blocks(way, ODD_SIZES.of_window(window))
    for values in ODD:
        xs = drawn(node)
        x = xs[operand]
        for place, value in zip(places, values, strict=False):
            if x.ndim == 5:
                x[place] = value
            else:  # weights
                x[place[4], place[0], place[2] % 3, place[3] % 3] = value
        expected = meaning(node, xs)
        assert 0 < np.isfinite(expected).sum() < expected.size
        assert_near(computed(node, xs, 2), expected, window)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_odd_bias_is_added_to_its_channel(value):
    node = in_blocks("with a bias")
    xs = drawn(node)
    xs[2][5] = value
    expected = meaning(node, xs)
    assert np.isfinite(expected).any()
    assert_near(computed(node, xs), expected, 3)


@every_way
@every_window
def test_points_that_overflow_spoil_no_result(window, way):
    node = in_blocks(way, ODD_SIZES.of_window(window))
    rng = np.random.default_rng(0)
    large = np.finfo("float32").max
    xs = [(rng.uniform(-large, large, x.shape)).astype("float32") for x in node.inputs]
    small = xs[0] if way == "to the weights" else xs[1]
    small *= np.float32(1e-3 / large)
    if way == "with a bias":
        xs[2] *= np.float32(1e-3)
    expected = meaning(node, xs)
    assert np.abs(expected).max() < large
    assert_near(computed(node, xs), expected, window)


# ---------------------------------------------------------------- pixels of very different size


def norms(node, xs):
    """For each result the norm of the pixels that it is made of, times that of weights or dy."""
    op = node.op.plain
    xs = [unpack(x) if x.ndim == 5 else x for x in (x.astype("float64") ** 2 for x in xs)]
    squares = np.zeros(unpacked(node.shape))
    if isinstance(op, Conv2dBackwardWeights):
        for (i, j), there, here in taps(xs[1], xs[0], op.conv.padding, node.shape[-1]):
            squares[:, :, i, j] = here.sum((0, 2, 3))[:, None] * there.sum((0, 2, 3))
        return np.sqrt(squares)
    x, w, *bias = xs
    reach = w.shape[2] - 1
    padding = op.padding if isinstance(op, Conv2d) else [reach - p for p in op.conv.padding]
    for _, there, here in taps(x, squares, padding, w.shape[2]):
        here += there.sum(1, keepdims=True)
    axis = 0 if isinstance(op, Conv2dBackwardData) else 1
    squares *= w.sum((axis, 2, 3))[:, None, None]
    for vector in bias:
        squares += vector[:, None, None]
    return pack(np.sqrt(squares), onednn.block())


def one_pixel(x, size):
    x[0, 0, 4, 4, 3] = size


def a_corner(x, size):
    x[0, 0, 0, 0, 3] = size


def one_image(x, size):
    x[0] *= size


def one_half(x, size):
    x[:, :, :, : x.shape[3] // 2] *= size


def one_channel(x, size):
    x[..., 3] *= size


def zeros_but_two(x, size):
    x[...] = 0
    x[0, 0, 1, 1], x[0, 0, 4, 4, 3] = 1, size


def all_sizes(x, size):
    x *= (size ** np.random.default_rng(1).random(x.shape[2:4])).astype("f")[..., None]


SIZES = [30, 300, 1e4, 1e6, 1e12, 1e25]  # some of which are let through, and some of which not
MOST = 64  # roundings


@every_way
@every_window
@pytest.mark.parametrize(
    "change", [one_pixel, a_corner, one_image, one_half, one_channel, zeros_but_two, all_sizes]
)
def test_the_error_of_a_result_is_relative_to_what_it_is_made_of(change, window, way):
    node = in_blocks(way, Case(2, 1, 2, (11, 9)).of_window(window))  # tiles span both images
    for size in SIZES:
        xs = drawn(node)
        change(xs[way == "to the weights"], np.float32(size))
        error = np.abs(computed(node, xs, 2) - meaning(node, xs))
        assert (error <= MOST * 2.0**-24 * norms(node, xs)).all(), size


@pytest.mark.parametrize("way", ["forward", "to the images"])
@every_window
def test_results_of_zeros_alone_are_zero(window, way):
    node = in_blocks(way, Case(1, 1, 1, (12, 12)).of_window(window))
    xs = drawn(node)
    xs[0][:] = 0
    xs[0][0, 0, 5, 6, 3] = 1e6
    expected = meaning(node, xs)
    np.testing.assert_array_equal(computed(node, xs) == 0, expected == 0)

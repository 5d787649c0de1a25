"""Products and convolutions of types that oneDNN has not: NumPy's results, in C."""

import functools
import itertools

import numpy as np
import pytest
from native_and_reference import both
from needs import needs_compiler

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import convolution, onednn
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights

pytestmark = needs_compiler

TYPES = ["float32", "float64", "int8", "uint16", "int32", "uint64", "bool"]
SHAPES = [
    ((5, 3), (3, 4)),
    ((70, 600), (600, 90)),
    ((2, 3, 6, 9), (9, 21)),
    ((3, 1, 6, 9), (2, 9, 4)),
    ((40, 3, 3), (40, 3, 3)),
    ((9, 16, 16), (9, 16, 16)),
    ((300, 200), (200, 1)),
    ((1, 200), (200, 30)),
    ((7, 5), (5, 2100)),
    ((3, 2, 1, 64), (3, 2, 64, 70)),
    ((3, 1, 20, 65), (2, 65, 1)),
    ((3, 1, 4, 2), (5, 2, 3)),
    ((1, 5000), (5000, 1)),
]


def numbers(shape, dtype, seed=0):
    """Numbers of every bit: integers wrap around."""
    rng = np.random.default_rng(seed)
    if dtype in ("float32", "float64"):
        return rng.standard_normal(shape).astype(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.2
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def product(x, y, turned=None):
    """Return the product of two operands of which one, or none, lies transposed."""
    operands = (ops.swapaxes(v, -1, -2) if i == turned else v for i, v in enumerate((x, y)))
    return ops.matmul(*operands)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", TYPES)
def test_products_of_every_type_are_those_of_numpy(dtype, threads, monkeypatch):
    if dtype == "float32":
        monkeypatch.setattr(onednn, "library", lambda: None)
    cases = []
    for shapes, turned in itertools.product(SHAPES, (None, 0, 1)):
        xs = [numbers(shape, dtype, i) for i, shape in enumerate(shapes)]
        xs = [x.swapaxes(-1, -2) if i == turned else x for i, x in enumerate(xs)]
        cases.append((functools.partial(product, turned=turned), *xs))
    near = {"float32": 1e-4, "float64": 1e-11}.get(dtype, 0)
    for actual, expected in both(cases, num_threads=threads):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=near, atol=near)


def assert_near(*cases, **options):
    for actual, expected in both(cases, **options):
        np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float64", "int16", "bool"])
def test_the_bias_is_added_once(dtype):
    def build(x, w, b):
        return x @ w | b if dtype == "bool" else x @ w + b

    arrays = numbers((20, 700), dtype), numbers((700, 30), dtype, 1), numbers(30, dtype, 2)
    assert_near((build, *arrays), graph_opt_level=2)


def test_a_product_of_float16_and_a_vector_is_rounded_once():
    x, w = (numbers(s, "float64", i).astype("float16") for i, s in enumerate([(60, 500), (500, 1)]))
    ((actual, _),) = both([(product, x, w)])
    exact = x.astype("float64") @ w.astype("float64")
    np.testing.assert_allclose(actual, exact, rtol=2**-11 + 1e-4, atol=1e-4)


def test_any_byte_of_a_view_of_truth_values_is_true():
    arrays = [np.array([[0, 2], [7, 0]], np.uint8).view(bool) for _ in range(2)]
    x, y = (mg.input(n, (2, 2), "bool") for n in "xy")
    actual = mg.comp_graph("cpu").compile([x, y], x @ y)(*arrays)
    np.testing.assert_array_equal(actual.view(np.uint8), np.eye(2))


@pytest.mark.parametrize("lanes", [8, 16])
def test_vectors_of_both_lengths_are_used(lanes, monkeypatch):
    monkeypatch.setattr(onednn, "block", lambda: lanes)
    assert_near((product, numbers((75, 300), "float64"), numbers((300, 61), "float64", 1)))


# Images and weights, stride, padding, dilation, groups.
CONVOLUTIONS = [
    ((2, 8, 9, 11), (12, 8, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((2, 3, 20, 17), (8, 3, 7, 5), (2, 3), (3, 0), (1, 1), 1),
    ((3, 8, 7, 7), (4, 2, 3, 2), (2, 1), (2, 4), (2, 3), 4),
    ((1, 4, 5, 6), (4, 1, 3, 3), (1, 1), (1, 1), (1, 1), 4),
    ((2, 16, 6, 5), (24, 16, 1, 1), (2, 1), (0, 0), (1, 1), 1),
    ((2, 2, 3, 3), (3, 2, 3, 3), (1, 1), (6, 5), (3, 2), 1),
]


def problems(sizes):
    """Yield a convolution with a bias and both its gradients, as ops with their operands."""
    x, w, *fields = sizes
    conv = Conv2d(*fields)
    y = conv(*(mg.input("v", s, "float64") for s in (x, w))).shape
    for op, *shapes in (
        (conv, x, w, w[:1]),
        (Conv2dBackwardData(conv, x), y, w),
        (Conv2dBackwardWeights(conv, w), y, x),
    ):
        yield op, *(numbers(shape, "float64", i) for i, shape in enumerate(shapes))


@pytest.mark.parametrize("channels", [1, 256])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("sizes", CONVOLUTIONS, ids=str)
def test_convolutions_are_what_they_mean(sizes, threads, channels, monkeypatch):
    """Weights of many channels have a piece for each place in the window."""
    monkeypatch.setattr(convolution, "MANY_CHANNELS", channels)
    assert_near(*problems(sizes), num_threads=threads)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_padding_meets_no_nan_and_no_infinity(value):
    for op, *arrays in problems(CONVOLUTIONS[1]):
        for array in arrays:
            array.flat[0] = value
        assert_near((op, *arrays))

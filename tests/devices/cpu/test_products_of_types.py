"""Products and convolutions of types that oneDNN has not: NumPy's results, in C."""

import numpy as np
import pytest
from needs import needs_compiler

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import convolution, onednn
from minigraph.graph import Graph
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


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", TYPES)
def test_products_of_every_type_are_those_of_numpy(dtype, threads, monkeypatch):
    if dtype == "float32":
        monkeypatch.setattr(onednn, "library", lambda: None)
    xs, ys, arrays, expected = [], [], [], []
    for shapes in SHAPES:
        for swapped in (None, 0, 1):  # which matrix lies transposed
            pair = [numbers(s, dtype, i) for i, s in enumerate(shapes)]
            expected.append(pair[0] @ pair[1])
            arrays += [v.swapaxes(-1, -2) if i == swapped else v for i, v in enumerate(pair)]
            xs += [mg.input(f"x{len(xs) + i}", v.shape, dtype) for i, v in enumerate(arrays[-2:])]
            x, y = (ops.swapaxes(x, -1, -2) if i == swapped else x for i, x in enumerate(xs[-2:]))
            ys.append(x @ y)
    step = mg.comp_graph("cpu", {"num_threads": threads}).compile(xs, ys)
    assert step.report().numpy == []
    for actual, each in zip(step(*arrays), expected, strict=True):
        assert actual.dtype == each.dtype
        near = {"float32": 1e-4, "float64": 1e-11}.get(dtype, 0)
        np.testing.assert_allclose(actual, each, rtol=near, atol=near)


@pytest.mark.parametrize("dtype", ["float64", "int16", "bool"])
def test_the_bias_is_added_once(dtype):
    arrays = numbers((20, 700), dtype), numbers((700, 30), dtype, 1), numbers(30, dtype, 2)
    x, w, b = (mg.input(f"x{i}", v.shape, dtype) for i, v in enumerate(arrays))
    y = x @ w | b if dtype == "bool" else x @ w + b
    step = mg.comp_graph("cpu", {"graph_opt_level": 2}).compile([x, w, b], y)
    (expected,) = Graph((x, w, b), (y,))(*arrays)
    np.testing.assert_allclose(step(*arrays), expected, rtol=1e-11, atol=1e-11)


def test_a_product_of_float16_and_a_vector_is_rounded_once():
    arrays = [
        numbers(s, "float64", i).astype("float16") for i, s in enumerate([(60, 500), (500, 1)])
    ]
    x, w = (mg.input(f"x{i}", v.shape, "float16") for i, v in enumerate(arrays))
    actual = mg.comp_graph("cpu").compile([x, w], x @ w)(*arrays)
    exact = arrays[0].astype("float64") @ arrays[1].astype("float64")
    np.testing.assert_allclose(actual, exact, rtol=2**-11 + 1e-4, atol=1e-4)


def test_any_byte_of_a_view_of_truth_values_is_true():
    arrays = [np.array([[0, 2], [7, 0]], np.uint8).view(bool) for _ in range(2)]
    x, y = (mg.input(n, (2, 2), "bool") for n in "xy")
    actual = mg.comp_graph("cpu").compile([x, y], x @ y)(*arrays)
    np.testing.assert_array_equal(actual.view(np.uint8), np.eye(2))


@pytest.mark.parametrize("lanes", [8, 16])
def test_vectors_of_both_lengths_are_used(lanes, monkeypatch):
    monkeypatch.setattr(onednn, "block", lambda: lanes)
    x, y = mg.input("x", (75, 300), "float64"), mg.input("y", (300, 61), "float64")
    arrays = numbers((75, 300), "float64"), numbers((300, 61), "float64", 1)
    step = mg.comp_graph("cpu").compile([x, y], x @ y)
    np.testing.assert_allclose(step(*arrays), arrays[0] @ arrays[1], rtol=1e-11, atol=1e-11)


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
    """Yield a convolution with a bias and both its gradients, as ops with shapes of inputs."""
    x, w, *fields = sizes
    conv = Conv2d(*fields)
    y = conv(*(mg.input("v", s, "float64") for s in (x, w))).shape
    yield conv, (x, w, w[:1])
    yield Conv2dBackwardData(conv, x), (y, w)
    yield Conv2dBackwardWeights(conv, w), (y, x)


@pytest.mark.parametrize("channels", [1, 256])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("sizes", CONVOLUTIONS, ids=str)
def test_convolutions_are_what_they_mean(sizes, threads, channels, monkeypatch):
    """Weights of many channels have a piece for each place in the window."""
    monkeypatch.setattr(convolution, "MANY_CHANNELS", channels)
    for op, shapes in problems(sizes):
        xs = [mg.input(f"x{i}", s, "float64") for i, s in enumerate(shapes)]
        arrays = [numbers(s, "float64", i) for i, s in enumerate(shapes)]
        step = mg.comp_graph("cpu", {"num_threads": threads}).compile(xs, op(*xs))
        assert step.report().numpy == []
        np.testing.assert_allclose(step(*arrays), op.forward(*arrays), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_padding_meets_no_nan_and_no_infinity(value):
    for op, shapes in problems(CONVOLUTIONS[1]):
        xs = [mg.input(f"x{i}", s, "float64") for i, s in enumerate(shapes)]
        arrays = [numbers(s, "float64", i) for i, s in enumerate(shapes)]
        for each in arrays:
            each.flat[0] = value
        actual = mg.comp_graph("cpu").compile(xs, op(*xs))(*arrays)
        with np.errstate(invalid="ignore"):
            expected = op.forward(*arrays)
        np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-11)

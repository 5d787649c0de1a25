"""The CPU's kernels of cumulative sums and products: rows, parts of long rows, and columns."""

import numpy as np
import pytest
from native_and_reference import assert_bits
from needs import needs_compiler

import minigraph as mg
from minigraph import ops
from minigraph.graph import BFLOAT16
from minigraph.ops.cumulative import Recurrence

pytestmark = needs_compiler

SIZES = {  # the array, and the axis
    "one element": ((1,), 0),
    "fewer rows than side by side": ((3, 50), 1),
    "rows side by side and one more": ((5, 33), 1),
    "many rows": ((300, 64), 1),
    "a row of two parts": ((5000,), 0),
    "a row of whole parts": ((5 * 4096,), 0),
    "rows of parts": ((3, 40_000), 1),
    "more rows than are cut into parts": ((17, 5000), 1),
    "columns": ((9, 300), 0),
    "more columns than side by side": ((30, 2000), 0),
    "columns of images": ((3, 21, 17, 20), 1),
}
PAIR = {ops.cumsum: np.cumsum, ops.cumprod: np.cumprod}


def computed(arrays, threads=2):
    """Yield the sums and the products of arrays, (x, axis), with NumPy's function for each."""
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, (x, _) in enumerate(arrays)]
    ys = [f(x, axis) for x, (_, axis) in zip(inputs, arrays, strict=True) for f in PAIR]
    function = mg.comp_graph("cpu", {"num_threads": threads}).compile(inputs, ys)
    assert not function.report().numpy
    results = iter(function(*(x for x, _ in arrays)))
    for x, axis in arrays:
        for of_numpy in PAIR.values():
            yield next(results), of_numpy, x, axis


def of_every_size(make):
    return [(make(shape), axis) for shape, axis in SIZES.values()]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint64", "int32", "uint8"])
def test_sums_and_products_are_those_of_numpy(dtype):
    rng = np.random.default_rng(0)
    floats = np.dtype(dtype).kind == "f"
    draw = (lambda s: rng.uniform(-1.1, 1.1, s)) if floats else (lambda s: rng.integers(0, 100, s))
    for actual, of_numpy, x, axis in computed(of_every_size(lambda s: draw(s).astype(dtype))):
        if not floats:
            np.testing.assert_array_equal(actual, of_numpy(x, axis), strict=True)
            continue
        expected = of_numpy(x.astype(np.float64), axis)
        rounding = 2e-7 if dtype == "float32" else 0
        np.testing.assert_allclose(actual, expected, rtol=rounding, atol=np.finfo(dtype).tiny)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_recurrences_have_the_bits_of_numpy(dtype, reverse):
    rng = np.random.default_rng(0)
    cases = [
        (lambda x, f, axis=axis: Recurrence(axis, reverse)(x, f), *rng.normal(size=(2, *shape)))
        for shape, axis in SIZES.values()
    ]
    cases = [(make, x.astype(dtype), f.astype(dtype) / 2) for make, x, f in cases]
    assert_bits(*cases, num_threads=2)
    edge = np.array([-0.0, 1, 2, np.nan, 1]), np.array([np.inf, 0, 0, 1, 1.0])
    assert_bits((cases[2][0], *(np.stack([v] * 5).astype(dtype) for v in edge)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_sums_are_sums_of_all_behind(dtype):
    rng = np.random.default_rng(0)
    arrays = of_every_size(lambda s: rng.integers(-9, 9, s).astype(dtype))
    inputs = [mg.input(f"x{i}", x.shape, dtype) for i, (x, _) in enumerate(arrays)]
    results = []
    for dy, (_, axis) in zip(inputs, arrays, strict=True):
        x = ops.zeros(dy.shape, dtype)
        results += mg.grad((ops.cumsum(x, axis) * dy).sum(), [x])
    function = mg.comp_graph("cpu").compile(inputs, results)
    for actual, (x, axis) in zip(function(*(x for x, _ in arrays)), arrays, strict=True):
        expected = np.flip(np.cumsum(np.flip(x, axis), axis), axis)
        np.testing.assert_array_equal(actual, expected, strict=True)


def check_like_numpy(arrays, dtype, threads=2):
    """Sums and products of the numbers x, which are exact, in this dtype."""
    cases = [(x.astype(dtype), axis) for x, axis in arrays]
    for actual, of_numpy, x, axis in computed(cases, threads):
        with np.errstate(invalid="ignore", over="ignore"):
            expected = of_numpy(x.astype(np.float64), axis).astype(dtype)
        np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(actual)[numbers], np.signbit(expected)[numbers])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0, 0.0])
def test_special_values_go_as_far_as_in_numpy(value, dtype):
    rng = np.random.default_rng(0)

    def special(shape):
        x = rng.choice([-1.0, 1.0], shape)
        x[rng.random(shape) < 0.002] = value
        x.reshape(-1)[-1] = np.inf
        return x

    check_like_numpy(of_every_size(special), dtype, threads=3)


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16])
def test_floats_of_16_bits_are_rounded_once(dtype):
    x = np.full((3, 2000), 1.0)
    x[1, 7], x[2, 9] = np.nan, -np.inf
    check_like_numpy([(x, 1)], dtype)


def test_sums_of_negative_zeros_are_negative_zeros():
    check_like_numpy(of_every_size(lambda shape: np.full(shape, -0.0)), "float32")


def test_large_numbers_overflow_where_they_do_in_order():
    pairs = np.tile([1e300, -1e300], 5000)
    x = np.concatenate([[-1.5e308], pairs, [1e308, 1e308, 1e308]])
    check_like_numpy([(x, 0)], "float64")
    for dtype in ("float32", "float64"):
        check_like_numpy([(np.concatenate([np.zeros(10), np.full(5000, 2.0**100)]), 0)], dtype)


def test_the_bits_are_the_same_for_any_number_of_threads():
    x = np.random.default_rng(0).standard_normal((2, 100_000)).astype("float32")
    for (one, *_), (three, *_) in zip(computed([(x, 1)], 1), computed([(x, 1)], 3), strict=True):
        np.testing.assert_array_equal(one, three)


def test_a_sum_overwrites_what_nothing_else_reads():
    x = mg.input("x", (64, 4096))
    function = mg.comp_graph("cpu").compile([x], ops.cumsum(x * 2, 1) * 2)
    assert function.report().memory.arena_bytes <= 64 * 4096 * 4
    value = np.random.default_rng(0).standard_normal((64, 4096)).astype("float32")
    expected = np.cumsum(4 * value.astype(np.float64), 1)
    np.testing.assert_allclose(function(value), expected, rtol=1e-6, atol=1e-5)

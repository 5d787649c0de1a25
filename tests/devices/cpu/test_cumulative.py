"""The CPU's kernels of cumulative sums and products: rows, parts of long rows, and columns."""

import numpy as np
import pytest
from needs import needs_compiler

import minigraph as mg
from minigraph import ops
from minigraph.graph import BFLOAT16

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
PAIR = (np.cumsum, np.cumprod)


def found(fs, x, axis, threads=2):
    fed = mg.input("x", x.shape, x.dtype)
    cg = mg.comp_graph("cpu", {"num_threads": threads})
    function = cg.compile([fed], [f(fed, axis) for f in fs])
    assert not function.report().numpy
    return function(x)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint64", "int32", "uint8"])
@pytest.mark.parametrize(("shape", "axis"), SIZES.values(), ids=SIZES)
def test_sums_and_products_are_those_of_numpy(shape, axis, dtype):
    rng = np.random.default_rng(0)
    floats = np.dtype(dtype).kind == "f"
    x = (rng.uniform(-1.1, 1.1, shape) if floats else rng.integers(0, 100, shape)).astype(dtype)
    for got, meant in zip(found((ops.cumsum, ops.cumprod), x, axis), PAIR, strict=True):
        if not floats:
            np.testing.assert_array_equal(got, meant(x, axis), strict=True)
            continue
        wanted = meant(x.astype(np.float64), axis)
        rounding = 2e-7 if dtype == "float32" else 0
        np.testing.assert_allclose(got, wanted, rtol=rounding, atol=np.finfo(dtype).tiny)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "axis"), SIZES.values(), ids=SIZES)
def test_gradients_of_sums_are_sums_of_all_behind(shape, axis, dtype):
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(dtype)
    fed, dy = (mg.input(name, shape, dtype) for name in ("x", "dy"))
    (dx,) = mg.grad((ops.cumsum(fed, axis) * dy).sum(), [fed])
    function = mg.comp_graph("cpu").compile([fed, dy], dx)
    want = np.flip(np.cumsum(np.flip(x, axis), axis), axis)
    np.testing.assert_array_equal(function(x, x), want, strict=True)


def check_like_numpy(x, axis, dtype, threads=2):
    """Sums and products of the numbers x, which are exact, in this dtype."""
    for got, meant in zip(
        found((ops.cumsum, ops.cumprod), x.astype(dtype), axis, threads), PAIR, strict=True
    ):
        with np.errstate(invalid="ignore", over="ignore"):
            want = meant(x, axis).astype(dtype)
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
        numbers = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0, 0.0])
@pytest.mark.parametrize(("shape", "axis"), SIZES.values(), ids=SIZES)
def test_special_values_go_as_far_as_in_numpy(shape, axis, value, dtype):
    rng = np.random.default_rng(0)
    x = rng.choice([-1.0, 1.0], shape)
    x[rng.random(shape) < 0.002] = value
    x.reshape(-1)[-1] = np.inf
    check_like_numpy(x, axis, dtype, threads=3)


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16])
def test_floats_of_16_bits_are_rounded_once(dtype):
    x = np.full((3, 2000), 1.0)
    x[1, 7], x[2, 9] = np.nan, -np.inf
    check_like_numpy(x, 1, dtype)


@pytest.mark.parametrize(("shape", "axis"), SIZES.values(), ids=SIZES)
def test_sums_of_negative_zeros_are_negative_zeros(shape, axis):
    check_like_numpy(np.full(shape, -0.0), axis, "float32")


def test_large_numbers_overflow_where_they_do_in_order():
    rest = np.tile([1e300, -1e300], 5000)
    x = np.concatenate([[-1.5e308], rest, [1e308, 1e308, 1e308]])
    check_like_numpy(x, 0, "float64")
    for dtype in ("float32", "float64"):
        check_like_numpy(np.concatenate([np.zeros(10), np.full(5000, 2.0**100)]), 0, dtype)


def test_the_bits_are_the_same_for_any_number_of_threads():
    x = np.random.default_rng(0).standard_normal((2, 100_000)).astype("float32")
    both = (found((ops.cumsum, ops.cumprod), x, 1, threads) for threads in (1, 3))
    for one, three in zip(*both, strict=True):
        np.testing.assert_array_equal(one, three)


def test_a_sum_overwrites_what_nothing_else_reads():
    x = mg.input("x", (64, 4096))
    function = mg.comp_graph("cpu").compile([x], ops.cumsum(x * 2, 1) * 2)
    assert function.report().memory.arena_bytes <= 64 * 4096 * 4
    value = np.random.default_rng(0).standard_normal((64, 4096)).astype("float32")
    want = np.cumsum(4 * value.astype(np.float64), 1)
    np.testing.assert_allclose(function(value), want, rtol=1e-6, atol=1e-5)

"""The error of a sum over n numbers grows with log(n) at most, whichever kernel computes it."""

import math
import operator
from itertools import chain

import numpy as np
import pytest
from needs import needs_compiler

import minigraph as mg
from minigraph import ops

WHERE = [("reference", 0), ("cpu", 0), ("cpu", 2), ("cpu", 3)]
ULPS = 8  # times log2(n), of the sum of absolute values
RNG = np.random.default_rng(0)


def gradient(fn, at):
    """Return the function of x and dy that is the gradient of fn at zeros of shape `at`."""

    def of(dy, *others):
        x = ops.zeros(at, dy.dtype)
        return mg.grad((fn(x, *others) * dy).sum(), [x])[0]

    return of


def equal(*shape):
    return np.full(shape, 0.1)


def apart(*shape):
    """Numbers of all sizes, a few of them huge."""
    x = RNG.lognormal(0, 3, shape)
    x.reshape(-1)[:: x.size // 3] *= 1e4
    return x


INDICES = RNG.integers(0, 4, 5000)


def added(indices, rows, dy):
    y = np.zeros((rows, *dy.shape[1:]), np.longdouble)
    np.add.at(y, indices, dy)
    return y


OF_INDICES = (lambda dy, i: added(i, 4, dy), len(INDICES))  # the meaning, and numbers in a sum

# What is added up, a function of positive arrays.  It is one of NumPy's too, applied to longer
# floats, or has its meaning beside it, and how many numbers make a sum.
SUMS = {
    "all": (lambda x: x.sum(), [equal(1 << 18)]),
    "columns": (lambda x: x.sum(0), [equal(1 << 16, 3)]),
    "wide columns": (lambda x: x.sum(0), [equal(1 << 14, 20)]),
    "outer and inner axes": (lambda x: x.sum((0, 2)), [apart(1 << 10, 16, 16)]),
    "rows of two of four": (lambda x: x[:, :2].sum(), [equal(1 << 16, 4)]),
    "rows of three of four, in blocks": (lambda x: x[:, :3].sum((0, 1)), [equal(1 << 13, 4, 16)]),
    "squares": (lambda x: (x * x).mean(), [apart(100_003)]),
    "mean of each row": (lambda x: x.mean(1), [apart(2, 70_001)]),
    "a pool of the whole image": (
        lambda x: ops.adaptive_avg_pool2d(x, 1),
        [equal(1, 2, 300, 300)],
        lambda x: x.mean((2, 3), keepdims=True),
        90_000,
    ),
    "the pools of large parts": (
        lambda x: ops.avg_pool2d(x, (20, 100)),
        [apart(1, 16, 60, 200)],
        lambda x: x.reshape(1, 16, 3, 20, 2, 100).mean((3, 5)),
        2000,
    ),
    "pools of windows that overlap and reach into padding": (
        lambda x: ops.avg_pool2d(x, 31, stride=1, padding=15, count_include_pad=False),
        [equal(1, 2, 80, 80)],
        lambda x: x,  # they are equal
        961,
    ),
    "a moving mean": (
        lambda x: ops.avg_pool2d(x, (1, 500), stride=1),
        [apart(1, 1, 1, 2000)],
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 500, 3).mean(-1),
        500,
    ),
    "the gradient of pools that overlap": (
        gradient(lambda x: ops.avg_pool2d(x, (1, 300), stride=1), (1, 1, 1, 900)),
        [equal(1, 1, 1, 601)],
        lambda dy: np.convolve(dy.reshape(-1), np.full(300, 1 / np.longdouble(300)))[
            None, None, None
        ],
        300,
    ),
    "the gradient of maxima that are one": (
        gradient(lambda x, bump: ops.max_pool2d(x + bump, 33, stride=1), (1, 1, 65, 65)),
        [equal(1, 1, 33, 33), np.pad([[[[1.0]]]], ((0, 0), (0, 0), (32, 32), (32, 32)))],
        lambda dy, bump: np.where(bump, dy.sum(), np.nan),
        1089,
    ),
    "the gradient of an embedding": (
        gradient(lambda x, i: ops.take(x, i, 0), (4, 24)),
        [apart(5000, 24), INDICES],
        *OF_INDICES,
    ),
    "the gradient of an element": (
        gradient(lambda x, i: ops.take(x, i, 0), (4,)),
        [equal(5000), INDICES],
        *OF_INDICES,
    ),
    "the gradient of indices along an axis": (
        gradient(lambda x, i: ops.take_along_axis(x, i[:, None], 0), (4, 1)),
        [equal(5000, 1), INDICES],
        *OF_INDICES,
    ),
    "the gradient of one pixel that is stretched": (
        gradient(lambda x: ops.interpolate(x, size=(70, 90), mode="bilinear"), (1, 2, 1, 1)),
        [equal(1, 2, 70, 90)],
        lambda dy: dy.sum((2, 3), keepdims=True),
        6300,
    ),
    "a product of one row": (operator.matmul, [equal(1, 60_000), apart(60_000, 20)], None, 60_000),
    "a product of one column": (
        operator.matmul,
        [equal(20, 60_000), apart(60_000, 1)],
        None,
        60_000,
    ),
    "a product of few rows": (operator.matmul, [equal(4, 60_000), apart(60_000, 8)], None, 60_000),
    "denominators of softmax": (
        lambda x: ops.softmax(x, 0).sum(1),
        [equal(30_000, 3)],
        lambda x: np.full(30_000, 3 / np.longdouble(30_000)),
        30_000,
    ),
}


def computed(device, level, functions, arrays):
    """Return the results of functions of their arrays, compiled as one."""
    inputs = [
        [mg.input(f"x{i}.{k}", x.shape, x.dtype) for k, x in enumerate(xs)]
        for i, xs in enumerate(arrays)
    ]
    results = [fn(*xs) for fn, xs in zip(functions, inputs, strict=True)]
    cg = mg.comp_graph(device, {"graph_opt_level": level, "autotune": "off"})
    return cg.compile([*chain(*inputs)], results)(*chain(*arrays))


def assert_near(name, result, exact, n):
    bound = ULPS * np.finfo(result.dtype).eps * max(math.log2(n), 1)
    error = np.max(np.abs(result - exact) / exact)
    assert error <= bound, f"{name}: {error / bound:.3g} times the bound"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("device", "level"), WHERE)
def test_a_sum_has_the_error_of_one_that_is_halved_again_and_again(device, level, dtype):
    def cast(arrays, dtype):
        return [x.astype(dtype) if x.dtype.kind == "f" else x for x in arrays]

    operands = [cast(xs, dtype) for _, xs, *_ in SUMS.values()]
    results = computed(device, level, [fn for fn, *_ in SUMS.values()], operands)
    for (name, (fn, _, *meaning)), xs, y in zip(SUMS.items(), operands, results, strict=True):
        exact, n = meaning or (None, xs[0].size // max(y.size, 1))
        expected = (exact or fn)(*cast(xs, np.longdouble))
        used = ~np.isnan(expected)
        assert_near(name, y[used], expected[used], n)


@needs_compiler
@pytest.mark.parametrize("level", [0, 2, 3])
def test_the_gradient_for_weights_adds_up_many_pixels(level):
    """In blocks, as Winograd's and direct convolutions and products do."""

    def of_weights(x, dy, **conv):
        w = ops.zeros((dy.shape[1], x.shape[1], 3, 3))
        return mg.grad((ops.conv2d(x, w, **conv) * dy).sum(), [w])[0]

    functions = [lambda x, dy: of_weights(x, dy), lambda x, dy: of_weights(x, dy, stride=2)]
    arrays = [
        [np.full((4, channels, side, side), 0.1, "float32"), np.ones((4, 16, 99, 99), "float32")]
        for channels, side in ((16, 101), (3, 199))
    ]
    for result in computed("cpu", level, functions, arrays):
        assert_near("weights", result, 4 * 99 * 99 * np.longdouble(np.float32(0.1)), 4 * 99 * 99)


# ---------------------------------------------------------------- statistics


def grid(period):
    x = np.zeros((4, 1, 100, 100), "float32")
    x[:, :, ::period, ::period] = 1e4
    return x


def outlier(image, row, column, value=123456.78):
    x = RNG.normal(size=(4, 1, 100, 100)).astype("float32")
    x[image, 0, row, column] = value
    return x


STATISTICS = {
    "equal numbers": np.full((8, 3, 224, 224), 7.7, "float32"),
    "equal large numbers": np.full((3, 2, 7, 9), 1e4 / 3, "float32"),
    "a large mean": (RNG.normal(size=(8, 2, 64, 64)) + 1e5).astype("float32"),
    "a small mean": (RNG.normal(size=(16, 3, 40, 41)) + 0.1).astype("float32"),
    "a grid of 2": grid(2),
    "a grid of 25": grid(25),
    "outliers on the quarters": np.stack([outlier(i, 25 * i, 25 * i)[0] for i in range(4)]),
    "an outlier in front": outlier(0, 0, 0),
    "an outlier behind": outlier(3, 99, 99, -1e18),
    "two numbers": np.array([[3.0], [3.0000002]], "float32"),
    "vectors": (RNG.normal(size=(4097, 33)) * 1e-3 + 1).astype("float32"),
    "a power of two": (RNG.normal(size=(4, 16, 32, 32)) * 7 - 3).astype("float32"),
}


@pytest.mark.parametrize(("device", "level"), WHERE)
def test_a_batch_norm_knows_mean_and_variance_of_whatever_it_is_given(device, level):
    arrays = list(STATISTICS.values())
    functions = [lambda x: ops.stack(ops.batch_norm_with_statistics(x)[1:])] * len(arrays)
    results = computed(device, level, functions, [[x] for x in arrays])
    for (name, x), (mean, variance) in zip(STATISTICS.items(), results, strict=True):
        axes, wide = (0, *range(2, x.ndim)), x.astype(np.longdouble)
        size = np.abs(wide).mean(axes).max()
        np.testing.assert_allclose(mean, wide.mean(axes), 0, 1e-6 * size, err_msg=name)
        np.testing.assert_allclose(variance, wide.var(axes), 2e-6, 1e-14, err_msg=name)


@pytest.mark.parametrize("level", [0, 3])
def test_distances_from_a_mean_have_their_mean_square(level):
    def spread(x):
        return ops.square(x - x.mean(keepdims=True)).mean()

    arrays = [[x] for name, x in STATISTICS.items() if "large" not in name]
    for (x,), result in zip(
        arrays, computed("cpu", level, [spread] * len(arrays), arrays), strict=True
    ):
        wide = x.astype(np.longdouble)
        # The mean has an error, as the program has it.
        rounded = 9 * np.spacing(np.abs(x).mean())
        np.testing.assert_allclose(result, wide.var(), 2e-6, rounded**2)


@pytest.mark.parametrize("level", [0, 2, 3])
def test_a_channel_of_equal_numbers_is_normalised_to_zeros(level):
    x = np.full((4, 2, 50, 51), 1e4 / 3, "float32")
    (y,) = computed("cpu", level, [lambda x: ops.batch_norm_with_statistics(x)[0]], [[x]])
    assert not y.any()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e30])
def test_what_is_not_finite_or_overflows_reaches_sums_and_statistics_alike_at_all_levels(value):
    x = RNG.normal(size=(8, 2, 32, 32))
    x[4, 0, 16, 16] = value
    functions = [
        lambda x: ops.stack(ops.batch_norm_with_statistics(x)[1:]),
        lambda x: x.sum((0, 2, 3)),
        lambda x: x.sum((1, 2, 3)),
        lambda x: ops.adaptive_avg_pool2d(x, 1),
    ]
    for dtype in ("float32", "float64"):
        arrays = [[x.astype(dtype)]] * len(functions)
        expected, *others = (computed(*where, functions, arrays) for where in WHERE)
        for result in others:
            for a, b in zip(result, expected, strict=True):
                np.testing.assert_allclose(a, b, 1e-4, 1e-5)

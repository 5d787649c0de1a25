"""Level 3 from outside: the numbers that its kernels compute."""

import math

import numpy as np
import pytest
from level_3 import SPECIAL, array, assert_same, check, compiled, each_alone
from needs import GENERATED, needs_compiler

import minigraph as mg
from minigraph import ops

pytestmark = needs_compiler


def by_hand(x, axis):
    e = ops.exp(x - ops.max(x, axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


FUNCTIONS = {
    "elementwise": lambda x: ops.tanh(x * 2 + 1) * x - ops.maximum(x, 0.25),
    "several results": lambda x: (ops.exp(x), ops.exp(x) * x + 1, (ops.exp(x) * x).sum(1)),
    "softmax": lambda x: ops.softmax(x * 2),
    "softmax of columns": lambda x: by_hand(x, 0) + 1,
    "log_softmax": lambda x: ops.log_softmax(x) * 0.5,
    "logsumexp": lambda x: ops.logsumexp(x, 1) - 1,
    "layer_norm": lambda x: ops.layer_norm(x, x.shape[1:]) * 2 + 1,
    "variance": lambda x: (ops.var(x, 1) + 1, ops.var(x) + 1),
    "columns": lambda x: ((x * x).sum(0) * 2 + 1, x.max(0) - x.min(0)),
    "rows and columns": lambda x: ((x * 2).sum(0), (x * 2).sum(1)),
    "outer sum": lambda x: x.mean(1, keepdims=True) * 2 + ops.abs(x),
    "mse_loss": lambda x: ops.mse_loss(x, ops.cos(x)),
}
SHAPES = [(1, 1), (7, 1), (1, 31), (5, 33), (3, 4097), (40, 1000), (2, 70_000), (70_000, 2)]
all_functions = each_alone(FUNCTIONS.values())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_agree_with_numpy_for_rows_of_any_length(shape):
    xs = [mg.input(f"x{i}", shape) for i in range(len(FUNCTIONS))]
    ys = list(all_functions(*xs))
    arrays = [array(*shape, seed=i) for i in range(len(xs))]
    expected = compiled(ys, xs, level=0, device="reference")(*arrays)
    for threads in (1, 2, 5):
        function = compiled(ys, xs, num_threads=threads)
        assert {maker for op, maker, _ in function.report().steps if op == "fused"} == {GENERATED}
        for result, y in zip(function(*arrays), expected, strict=True):
            assert_same(result, y, 2e-5, signs=False)


@pytest.mark.parametrize(("length", "count"), [(33, 4), (16_384, 6)])
def test_many_stages_in_one_kernel_take_no_longer_to_find_than_as_many_kernels(length, count):
    def stacked(x):
        for _ in range(count):
            x = ops.softmax(x * 2)
        return x

    check(stacked, array(8, length), kernels=1)


def test_what_all_parts_of_a_split_row_read_is_not_overwritten_before():
    """The mean could take the place of the sum, which each thread divides for itself."""
    x = mg.input("x", (2, 70_000))
    centred = x - ops.exp(x).sum(1, keepdims=True) / 70_000
    y = centred / ops.abs(centred * centred).sum(1, keepdims=True)
    values = array(2, 70_000)
    (expected,) = compiled([y], [x], level=0)(values)
    for threads in (1, 2, 5):
        assert_same(compiled([y], [x], num_threads=threads)(values)[0], expected)


def test_special_values_pass_as_in_numpy():
    x = np.resize(np.array(SPECIAL, "float32"), (16, 40))
    x[8:] = array(8, 40)
    for i, value in enumerate(SPECIAL[:5]):
        x[8 + i, 3 * i] = value
    check(FUNCTIONS["elementwise"], x)
    check(all_functions, *[x] * len(FUNCTIONS), signs=False)


def some_floats(*edges):
    """Return every 4001st float, the floats next to infinity and NaN, and special ones."""
    bits = np.concatenate([np.arange(0, 0x7F800002, 4001), np.arange(0x7F7FFF00, 0x7F800002)])
    x = np.concatenate([bits, bits | 0x80000000]).astype(np.uint32).view(np.float32)
    return np.concatenate([x, np.float32([*edges, *SPECIAL])])


def check_accuracy(fn, exact, x, units):
    """Assert that no error exceeds so many units in the last place; return the results.

    They are 0 instead of a denormal, because programs flush denormals.

    exact  the same function, of longer floats
    """
    a = mg.input("a", x.shape, x.dtype)
    (y,) = compiled([fn(a)], [a])(x)
    with np.errstate(all="ignore"):  # signalling NaN, too
        wide = exact(x.astype(np.float64 if x.dtype == np.float32 else np.longdouble))
        rounded = wide.astype(x.dtype)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(rounded))
    np.testing.assert_array_equal(y[np.isinf(rounded)], rounded[np.isinf(rounded)])
    limits = np.finfo(x.dtype)
    assert (y[np.abs(wide) < limits.tiny] == 0).all()
    usual = (np.abs(wide) >= limits.tiny) & np.isfinite(rounded)
    assert (np.signbit(y) == np.signbit(wide))[usual].all()
    unit = np.exp2(np.floor(np.log2(np.abs(wide[usual]))) - limits.nmant)
    assert (np.abs(y[usual] - wide[usual]) / unit).max() < units
    return y


def test_exp_is_within_1_2_units_in_the_last_place():
    check_accuracy(ops.exp, np.exp, some_floats(-87.33655, -87.33654, 88.72283, 88.72284), 1.2)


def test_tanh_is_odd_never_above_one_and_within_2_7_units_in_the_last_place():
    near = np.linspace(0, 10, 100_000, dtype=np.float32)
    x = np.concatenate([some_floats(9.0, 9.01, 9.02, 9.03), near])
    y, of_opposite = (check_accuracy(ops.tanh, np.tanh, v, 2.7) for v in (x, -x))
    number = ~np.isnan(x)
    np.testing.assert_array_equal(of_opposite[number], -y[number])
    assert (np.signbit(y) == np.signbit(x))[number].all()
    assert (np.abs(y[number]) <= 1).all()
    assert (np.abs(y[np.abs(x) >= 9.02]) == 1).all()


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no dtype is more exact")
@pytest.mark.parametrize(("name", "units"), [("exp", 1.2), ("tanh", 2.5)])
def test_exponentials_of_float64_are_within_units_in_the_last_place(name, units):
    rng, limits = np.random.default_rng(0), [-708.3964185322641, 709.782712893384, 19.1]
    x = rng.integers(0, 2**64, 50_000, np.uint64, endpoint=False).view(np.float64)
    near = [np.linspace(-n, n, 50_000) for n in (1, 20, 710)]
    beside = [np.nextafter(limits, end) for end in (-np.inf, np.inf)]
    x = np.concatenate([x, *near, limits, *beside, np.array(SPECIAL, np.float64)])
    check_accuracy(getattr(ops, name), getattr(np, name), x, units)


@pytest.mark.parametrize(("name", "units"), [("erf", 1.2), ("erfc", 5.5)])
def test_error_functions_of_floats_are_within_units_in_the_last_place(name, units):
    near = np.linspace(-10, 10, 100_000, dtype=np.float32)
    x = np.concatenate([some_floats(0.875, 3.93, 9.194, 1.0, 2 / 3, 4 / 3), near])
    x = np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(np.float32(0), x), x)
    exact = np.vectorize(getattr(math, name), otypes=[np.float64])
    check_accuracy(getattr(ops, name), exact, x, units)


def test_a_matrix_and_its_transpose_are_read_at_once():
    x = array(50, 50)
    check(lambda a: ops.tanh(a) * a.T, x, kernels=1)
    check(lambda a: (a + a.T).sum(1) - (a * a.T).max(1), x, kernels=1)
    check(lambda a: ops.exp(a) * 2 + ops.exp(a).T, x)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (0,), (0, 3), (3, 0, 2)], ids=str)
def test_arrays_of_one_element_or_none(shape):
    x = array(*shape)
    check(lambda a: (a * 2 + 1, ops.exp(a) * a, (a * a).sum() + 1), x)


def test_random_numbers_are_those_of_level_0():
    x = mg.input("x", (64, 700))
    y = ops.dropout(x * 2, 0.3) * 3 + ops.random_normal((700, 64)).T + ops.random_uniform((700,))
    values = array(64, 700)
    results = []
    for options in ({"level": 0}, {"level": 3}, {"level": 3, "num_threads": 3}):
        function = compiled(y, [x], seed=7, **options)
        results.append([function(values), function(values)])
    for first, second in results[1:]:
        assert_same(first, results[0][0])
        assert_same(second, results[0][1])
    assert not np.array_equal(*results[0])

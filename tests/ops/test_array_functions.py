"""Functions made of other ops: gradients as in PyTorch, and native kernels."""

import numpy as np
import pytest
from beside_torch import assert_agree, needs_torch, torch
from op_values import assert_native
from samples import integer, real

import minigraph as mg
from minigraph import ops
from minigraph.graph import BFLOAT16, Graph

X = real(3, 4, seed=1)
ZEROS = np.array([[0.0, 2, 3, 0], [1, 0, 0, 2], [3, 1, 2, -1]])
CUBE = real(2, 3, 4, seed=2)

PLACES = np.array([[1, 1], [3, 0], [2, 2]])

# Each as a function of minigraph.ops or torch, and of an expression or a tensor.
FUNCTIONS = {
    "tril": (lambda f, x: f.tril(x), X),
    "triu": (lambda f, x: f.triu(x, 1), X),
    "tile": (lambda f, x: f.tile(x, (2, 1, 3)), X),
    "roll": (lambda f, x: f.roll(x, (1, -2), (0, 1)), X),
    "moveaxis": (lambda f, x: f.moveaxis(x, 0, 2), CUBE),
    "swapaxes": (lambda f, x: f.swapaxes(x, 0, 2), CUBE),
    "flatten": (lambda f, x: f.flatten(x, 1, -1), CUBE),
    "outer": (lambda f, x: f.outer(x[0], x[:, 1]), X),
    "einsum": (lambda f, x: f.einsum("bij,bkj->kb", x, x), CUBE),
    "einsum-3": (lambda f, x: f.einsum("bij,j,i", x, x[0, 0], x[1, :, 2]), CUBE),
    "einsum-dots": (lambda f, x: f.einsum("...j,...j->...", x, x[0]), CUBE),
    "std": (lambda f, x: f.std(x, 1, correction=1), X),
    "norm": (lambda f, x: vector_norm(f)(x, 2, 1), np.vstack([X, 0 * X])),
    "norm-1": (lambda f, x: vector_norm(f)(x, 1, 1, True), X),
    "norm-inf": (lambda f, x: vector_norm(f)(x, float("inf"), 0), X),
    "normalize": (lambda f, x: of_nn(f).normalize(x), np.vstack([X, 0 * X])),
    "normalize-1": (lambda f, x: of_nn(f).normalize(x, 1, 0), X),
    "cosine_similarity": (lambda f, x: of_nn(f).cosine_similarity(x[:, None], x + 1, -1), X),
    "diff": (lambda f, x: f.diff(x, 2, 0) if f is not ops else f.diff(x, 0, 2), X),
    "cumsum": (lambda f, x: f.cumsum(x, 1), X),
    "cumprod": (lambda f, x: f.cumprod(x, 1), X),
    "take_along_axis": (lambda f, x: along(f)(x, PLACES, 1), X),
    "cumprod-zeros": (lambda f, x: f.cumprod(x, 1), ZEROS),
}


def along(f):
    """torch's function, which takes indices from 0 on in a tensor, or ours."""
    return f.take_along_axis if f is ops else lambda x, at, dim: x.gather(dim, f.tensor(at))


def of_nn(f):
    return f if f is ops else f.nn.functional


def vector_norm(f):
    return f.norm if f is ops else f.linalg.vector_norm


@needs_torch
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_torchs(name):
    fn, value = FUNCTIONS[name]
    assert_agree(lambda x: fn(ops, x), lambda x: fn(torch, x), value, rtol=1e-12)


@pytest.mark.parametrize("level", [0, 3])
def test_native_kernels_compute_them_at_every_level(level):
    names = ["einsum", "take_along_axis", "cumprod", "norm", "roll", "cosine_similarity"]
    cases = [(fn, value.astype("float32")) for fn, value in map(FUNCTIONS.get, names)]
    inputs = [mg.input(f"x{i}", value.shape) for i, (_, value) in enumerate(cases)]
    results = [fn(ops, x) for x, (fn, _) in zip(inputs, cases, strict=True)]
    outputs = (*results, *mg.grad(sum(ops.sum(y * y) for y in results), inputs))
    assert_native(inputs, outputs, [value for _, value in cases], level)


def test_tests_of_elements_run_in_native_kernels():
    x, n = mg.input("x", (3, 4)), mg.input("n", (3, 4), "int64")
    outputs = (
        ops.repeat(x, 2, 0),
        ops.any(x > 1, 1),
        ops.all(n, 0),
        ops.argmin(x, 1),
        ops.argmin(n),
        ops.count_nonzero(n),
        ops.diff(n),
        ops.zeros((2, 3)),
    )
    assert_native([x, n], outputs, [X.astype("float32"), integer(3, 4)])


def test_the_gradient_of_a_deviation_or_norm_of_zero_is_zero():
    x = mg.input("x", (4,), "float64")
    for y in (ops.std(x), ops.norm(x)):
        (dx,) = mg.grad(y, [x])
        np.testing.assert_array_equal(Graph((x,), (dx,))(np.zeros(4))[0], np.zeros(4))


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16])
def test_sums_of_16_bits_are_computed_in_float32(dtype):
    x = mg.input("x", (300,), dtype)
    for y, want in (
        (ops.cumsum(x), np.arange(1.0, 301) * 200),
        (ops.norm(x), 200 * 300**0.5),
        (ops.normalize(x, axis=0), 300**-0.5),
        (ops.cosine_similarity(x, x, axis=0), 1),
        (ops.vecdot(x, x / 200), 60000),
        (ops.einsum("i->", x), 60000),
        (ops.std(x), 0),
    ):
        assert y.dtype == x.dtype
        (got,) = Graph((x,), (y,))(np.full(300, 200, x.dtype))
        np.testing.assert_allclose(got.astype(float), want, rtol=0.01)


def test_a_long_cumulative_sum_loses_less_than_a_loop():
    value = real(100_000, low=0, high=1).astype(np.float32)
    x = mg.input("x", value.shape)
    exact = np.cumsum(value.astype(np.float64))
    got = mg.comp_graph("cpu").compile([x], ops.cumsum(x))(value)
    assert np.abs(got - exact).max() <= np.abs(np.cumsum(value) - exact).max()
    np.testing.assert_allclose(got, exact, rtol=1e-6)


def test_created_arrays_have_the_dtype_of_their_numbers():
    assert ops.full(2, 1.5).dtype == ops.arange(0.0, 3).dtype == ops.eye(2).dtype == np.float32
    assert ops.full(2, 1).dtype == ops.arange(3).dtype == np.int64
    assert ops.full(2, True).dtype == bool
    assert ops.zeros_like(np.ones(2, "int8")).dtype == np.int8

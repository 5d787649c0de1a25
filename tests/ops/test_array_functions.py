"""Functions made of other ops: gradients as in PyTorch, and native kernels."""

import numpy as np
import pytest
from beside_torch import assert_agree, needs_torch, torch
from needs import needs_compiler
from op_values import assert_native
from samples import integer, real

import minigraph as mg
from minigraph import ops
from minigraph.graph import BFLOAT16, Graph

X = real(3, 4, seed=1)
ZEROS = np.array([[0.0, 2, 3, 0], [1, 0, 0, 2], [3, 1, 2, -1]])
CUBE = real(2, 3, 4, seed=2)

# Each as a function of minigraph.ops or torch, and of an expression or a tensor.  What only
# rearranges and multiplies has NumPy's values, and the gradients of the ops that it is made of.
FUNCTIONS = {
    "std": (lambda f, x: f.std(x, 1, correction=1), X),
    "norm": (lambda f, x: vector_norm(f)(x, 2, 1), np.vstack([X, 0 * X])),
    "norm-1": (lambda f, x: vector_norm(f)(x, 1, 1, True), X),
    "norm-inf": (lambda f, x: vector_norm(f)(x, float("inf"), 0), X),
    "normalize": (lambda f, x: of_nn(f).normalize(x), np.vstack([X, 0 * X])),
    "normalize-1": (lambda f, x: of_nn(f).normalize(x, 1, 0), X),
    "cosine_similarity": (lambda f, x: of_nn(f).cosine_similarity(x[:, None], x + 1, -1), X),
    "cumprod": (lambda f, x: f.cumprod(x, 1), X),
    "cumprod-zeros": (lambda f, x: f.cumprod(x, 1), ZEROS),
}


def of_nn(f):
    return f if f is ops else f.nn.functional


def vector_norm(f):
    return f.norm if f is ops else f.linalg.vector_norm


@needs_torch
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_torchs(name):
    fn, value = FUNCTIONS[name]
    assert_agree(lambda x: fn(ops, x), lambda x: fn(torch, x), value, rtol=1e-12)


@needs_compiler
@pytest.mark.parametrize("level", [0, 3])
def test_native_kernels_compute_them_at_every_level(level):
    x, y = mg.input("x", X.shape), mg.input("y", CUBE.shape)
    results = [fn(ops, x) for fn, _ in FUNCTIONS.values()]
    results += [ops.einsum("bij,bkj->kb", y, y), ops.roll(x, (1, -2), (0, 1))]
    results.append(ops.take_along_axis(x, [[1, 1], [3, 0], [2, 2]], 1))
    outputs = (*results, *mg.grad(sum(ops.sum(r * r) for r in results), [x, y]))
    assert_native([x, y], outputs, [X.astype("float32"), CUBE.astype("float32")], level)


@needs_compiler
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
        (result,) = Graph((x,), (y,))(np.full(300, 200, x.dtype))
        np.testing.assert_allclose(result.astype(float), want, rtol=0.01)


def test_a_long_cumulative_sum_loses_less_than_a_loop():
    value = real(100_000, low=0, high=1).astype(np.float32)
    x = mg.input("x", value.shape)
    exact = np.cumsum(value.astype(np.float64))
    result = mg.comp_graph("cpu").compile([x], ops.cumsum(x))(value)
    assert np.abs(result - exact).max() <= np.abs(np.cumsum(value) - exact).max()
    np.testing.assert_allclose(result, exact, rtol=1e-6)


def test_created_arrays_have_the_dtype_of_their_numbers():
    assert ops.full(2, 1.5).dtype == ops.arange(0.0, 3).dtype == ops.eye(2).dtype == np.float32
    assert ops.full(2, 1).dtype == ops.arange(3).dtype == np.int64
    assert ops.full(2, True).dtype == bool
    assert ops.zeros_like(np.ones(2, "int8")).dtype == np.int8


@pytest.mark.parametrize(
    "product",
    [
        lambda x: x[0] @ x[1],
        lambda x: x[:, None] @ x[:, :, None],
        lambda x: ops.einsum("ij,ij->i", x, x),
        lambda x: ops.tensordot(x, x),
    ],
)
def test_a_product_of_vectors_is_no_product_of_matrices(product):
    x = mg.input("x", X.shape)
    for level in (0, 3):
        function = mg.comp_graph(options={"graph_opt_level": level}).compile([x], product(x))
        assert "matmul" not in function.report().ops

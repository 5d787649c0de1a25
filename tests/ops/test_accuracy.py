"""Functions keep their accuracy: floats of 16 bits, tails, one rounding, and powers."""

import math

import ml_dtypes
import numpy as np
import pytest
from elementwise_samples import assert_same, specials
from op_values import F32, F64, evaluate, forward

import minigraph as mg
from minigraph import ops
from minigraph.graph import BFLOAT16, FLOATS, Graph
from minigraph.ops.exponential import Pow

# Of functions of float16 that need more than its range or precision on the way; an input for each.
ROW = np.array([[1000, -1000, 3, 5], [300, 280, -310, 200], [1, 2, 3, 4]], np.float16)
NEAR = (2048 + 2 * np.arange(12).reshape(3, 4)).astype(np.float16)
WIDE = {
    "layer_norm": (lambda x: ops.layer_norm(x, (4,)), ROW),
    "layer_norm with weights": (lambda x: ops.layer_norm(x, (4,), x[2], x[2]), ROW),
    "layer_norm of near numbers": (lambda x: ops.layer_norm(x, (4,)), NEAR),
    "mean": (ops.mean, np.full(4096, 100, np.float16)),
    "var": (lambda x: ops.var(x, 1) / 1000, ROW / 10),
    "var of many": (ops.var, np.resize(np.array([-300, 100], np.float16), 4096)),
    "var of near numbers": (lambda x: ops.var(x, 1), NEAR),
    "logsumexp": (ops.logsumexp, np.zeros(100_000, np.float16)),
    "softmax": (lambda x: ops.softmax(x, 1), ROW / 8),
    "log_softmax": (lambda x: ops.log_softmax(x, 1), ROW / 8),
    "mse_loss": (lambda x: ops.mse_loss(x, x[::-1]) / 1000, ROW / 4),
    "local_response_norm": (lambda x: ops.local_response_norm(x[None], 2, 0.1, 0.75, 1.0), ROW),
    "batch_norm": (lambda x: ops.batch_norm_with_statistics(x)[0], ROW / 10),
    "prod": (lambda x: ops.prod(x, 1), np.array([[300, 300, 1e-3, 1e-2]], np.float16)),
    "avg_pool2d": (lambda x: ops.avg_pool2d(x, 8, 1), np.full((1, 1, 9, 9), 2000, np.float16)),
    "max_pool2d": (lambda x: ops.max_pool2d(x, 4, 1), np.eye(7, dtype=np.float16)[None, None]),
    "take": (lambda x: ops.take(x, np.zeros(5000, int), 0), ROW),
    "softplus": (ops.softplus, np.linspace(-16, 24, 81, dtype=np.float16)),
    "sigmoid": (ops.sigmoid, np.linspace(-16, 16, 65, dtype=np.float16)),
    "silu": (ops.silu, np.linspace(-16, 16, 65, dtype=np.float16)),
}


@pytest.mark.parametrize("gradient", [False, True], ids=["value", "gradient"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
@pytest.mark.parametrize("name", WIDE)
def test_floats_of_16_bits_are_reduced_in_float32(name, dtype, gradient):
    fn, x = WIDE[name]
    x = x.astype(dtype)

    def computed(x):
        y = fn(x)
        weights = (np.arange(y.size) ** 2 % 11 + 1).reshape(y.shape) / 8
        return mg.grad(ops.sum(y * weights.astype(x.dtype)), [x])[0] if gradient else y

    with np.errstate(under="ignore"):
        result, want = evaluate(computed, x), evaluate(computed, x.astype(F64))
    assert result.dtype == dtype
    eps = float(ml_dtypes.finfo(dtype).eps)
    near = 8 * eps * np.abs(want).max()
    np.testing.assert_allclose(result.astype(F64), want, rtol=8 * eps, atol=near)


def normal_tail(x):
    """Return the normal distribution function, to the last bits of float64."""
    return np.array([0.5 * math.erfc(-v * math.sqrt(0.5)) for v in x])


def sigmoid_tail(x):
    return 1 / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize(("form", "tail"), [("none", normal_tail), ("tanh", sigmoid_tail)])
def test_gelu_is_as_accurate_in_its_tail_as_anywhere(form, tail, device, level):
    x = np.linspace(-8, 8, 1601, dtype=F32)
    node = mg.input("x", x.shape)
    function = mg.comp_graph(device, {"graph_opt_level": level}).compile(
        [node], ops.gelu(node, form)
    )
    wide = x.astype(F64)
    np.testing.assert_allclose(function(x), wide * tail(wide), rtol=3e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("fn", [ops.expm1, ops.elu])
def test_the_gradient_of_expm1_is_as_accurate_in_its_tail_as_anywhere(fn, dtype):
    x = np.linspace(-9, -0.5, 100).astype(dtype)
    node = mg.input("x", x.shape, dtype)
    (slope,) = Graph((node,), tuple(mg.grad(fn(node).sum(), [node])))(x)
    eps = float(ml_dtypes.finfo(x.dtype).eps)
    np.testing.assert_allclose(slope.astype(F64), np.exp(x.astype(F64)), rtol=2 * eps)


def test_fma_rounds_once():
    x = np.array([1 + 2**-12, 2.0**-80], F32)
    result = evaluate(lambda x: ops.fma(x, x, np.array([-1 - 2.0**-11, 0], F32)), x)
    np.testing.assert_array_equal(result, np.array([2.0**-24, 0], result.dtype))
    assert ops.fma(mg.input("x", (2,)), 2, 1).dtype == F32


def test_more_equals_than_float16_counts_share_the_gradient_of_their_maximum():
    x = mg.input("x", (70_000,), "float16")
    (dx,) = mg.grad(ops.max(x).astype("float32"), [x])
    shares = Graph((x,), (dx,))(np.zeros(70_000, np.float16))[0]
    np.testing.assert_allclose(shares.astype(F64), 1 / 70_000, rtol=0.01)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_remainders_are_exact_for_quotients_of_any_size(dtype):
    rng = np.random.default_rng(0)
    y = rng.standard_normal(20_000).astype(dtype)
    whole = np.exp2(rng.uniform(0, 60, y.size)).round() * rng.choice([-1, 1], y.size)
    x = (whole * y).astype(dtype)  # near a multiple, on both sides
    x = np.nextafter(x, rng.choice([-np.inf, np.inf], x.size).astype(dtype))
    nodes = mg.input("x", x.shape, dtype), mg.input("y", y.shape, dtype)
    function = mg.comp_graph("cpu").compile([*nodes], [nodes[0] % nodes[1], nodes[0] // nodes[1]])
    remainder, quotient = function(x, y)
    np.testing.assert_array_equal(remainder, np.remainder(x, y))
    np.testing.assert_array_equal(quotient, np.floor_divide(x, y))


# ---------------------------------------------------------------- powers, however given

EXPONENTS = [*(n / 2 for n in range(-10, 11)), np.inf, -np.inf, np.nan]


def powers_one_by_one(x):
    """x to each of EXPONENTS: NumPy takes a root instead where an array has one exponent."""
    with np.errstate(all="ignore"):
        return [np.power(x, np.full_like(x, e)) for e in EXPONENTS]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_power_does_not_depend_on_how_its_exponent_is_repeated(dtype):
    with np.errstate(over="ignore"):
        x = specials(F64 if dtype == F64 else F32).astype(dtype)
    for exponent, want in zip(EXPONENTS, powers_one_by_one(x), strict=True):
        for y in (np.array(exponent, dtype), np.full(x.shape, exponent, dtype)):
            (result,) = forward(Pow(), [x, y])
            wide, near = result.astype(F64), 4 * float(ml_dtypes.finfo(dtype).eps)
            np.testing.assert_allclose(wide, want.astype(F64), rtol=near)
            zero = want == 0
            np.testing.assert_array_equal(np.signbit(result[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("level", range(4))
def test_powers_of_special_values_are_the_same_at_every_level(device, level):
    large = np.abs(specials(F32)) >= np.finfo(F32).tiny  # programs flush denormals to zero
    x = specials(F32)[large | ~np.isfinite(specials(F32)) | (specials(F32) == 0)]
    node = mg.input("x", x.shape)
    ys = [node**exponent for exponent in EXPONENTS]
    function = mg.comp_graph(device, {"graph_opt_level": level}).compile([node], ys)
    for result, want in zip(function(x), powers_one_by_one(x), strict=True):
        kept = (np.abs(want) >= np.finfo(F32).tiny) | (want == 0) | ~np.isfinite(want)
        assert_same(result[kept], want[kept])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_powers_made_of_products_are_within_two_units_in_the_last_place(dtype):
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-2, 2, 10_000)) * rng.choice([-1, 1], 10_000)
    x = x.astype(dtype)
    node, exponents = mg.input("x", x.shape, dtype), [-2, -1, 2, 3, 4]
    function = mg.comp_graph("cpu", {"graph_opt_level": 3}).compile(
        [node], [node**exponent for exponent in exponents]
    )
    assert "pow" not in function.report().ops
    wide, eps = x.astype(np.longdouble), float(ml_dtypes.finfo(dtype).eps)
    for result, exponent in zip(function(x), exponents, strict=True):
        want = wide**exponent
        unit = np.exp2(np.floor(np.log2(np.abs(want)))) * eps
        assert (np.abs(result.astype(np.longdouble) - want) / unit).max() < 2

"""Values and gradients of arithmetic agree with PyTorch at its edges."""

import numpy as np
import pytest
from beside_torch import EXTREMES, INF, NAN, assert_agree, assert_same_call, ours, theirs, torch
from samples import real

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph

pytestmark = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
GRID = np.meshgrid(*[[-2.0, -1, -0.0, 0, 0.5, 1, 2, 3, INF]] * 2)
TIES = np.array([[1.0, 3, 3, 2], [5, 5, 5, 5], [NAN, 1, 1, 2], [-INF, -INF, 0, 0]])
ZEROS = np.array([[1.0, 2, 3], [0, 2, 3], [0, 2, 0], [0, 0, 0]])


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_prod_with_zeros(axis):
    dim = () if axis is None else (axis,)
    assert_agree(lambda x: ops.prod(x, axis), lambda x: torch.prod(x, *dim), ZEROS)
    assert_agree(lambda x: ops.prod(x, axis), lambda x: torch.prod(x, *dim), ZEROS[:1])


@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
def test_extrema_share_the_gradient_among_equals(axis):
    assert_agree(lambda x: ops.max(x, axis), lambda x: torch.amax(x, axis), TIES)
    assert_agree(lambda x: ops.min(x, axis), lambda x: torch.amin(x, axis), TIES)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_the_larger_of_equals_shares_the_gradient(name):
    assert_agree(getattr(ops, name), getattr(torch, name), *GRID)


def test_pow_of_zero_and_negative_bases():
    x, y = (v[np.isfinite(v)] for v in np.where(np.isfinite(GRID[0] + GRID[1]), GRID, NAN))
    assert_agree(ops.pow, torch.pow, x, y)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, 1.5, -1, -0.5])
def test_pow_with_a_number(exponent):
    x = np.array([-2.0, 0, 0.5, 3, INF])
    assert_agree(lambda x: x**exponent, lambda x: x**exponent, x)
    assert_agree(lambda x: 2**x, lambda x: 2**x, x)
    assert_agree(lambda x: 0**x, lambda x: 0**x, x)


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (None, 0), (0, None), (2, 1), (0, 0)])
def test_clip_at_its_bounds(low, high):
    x = np.array([-INF, -2, -1, -0.5, 0, 0.5, 1, 2, INF, NAN])
    assert_agree(lambda x: ops.clip(x, low, high), lambda x: torch.clamp(x, low, high), x)


@pytest.mark.parametrize("axis", [1, (0, 1)])
def test_logsumexp_with_infinities(axis):
    for x in (EXTREMES[:3], EXTREMES[3:4], EXTREMES[5:], real(3, 4)):
        assert_agree(lambda x: ops.logsumexp(x, axis), lambda x: torch.logsumexp(x, axis), x)
    (got,) = theirs(lambda x: torch.logsumexp(x, axis).detach(), [EXTREMES[4:5]])[:1]
    np.testing.assert_array_equal(ours(lambda x: ops.logsumexp(x, axis), [EXTREMES[4:5]])[0], got)


@pytest.mark.parametrize("correction", [0, 1, 1.5])
@pytest.mark.parametrize("axis", [None, 1, (0, 2)])
def test_var(axis, correction):
    assert_agree(
        lambda x: ops.var(x, axis, correction=correction),
        lambda x: torch.var(x, axis, correction=correction),
        real(3, 4, 2),
    )


def test_atan2_in_every_quadrant_and_at_the_origin():
    finite = np.isfinite(GRID[0]) & np.isfinite(GRID[1])
    assert_agree(ops.atan2, torch.atan2, *(v[finite] for v in GRID))


def test_remainder_and_floor_divide_follow_the_divisors_sign():
    x, y = (v[GRID[1] != 0] for v in GRID)
    finite = np.isfinite(x)
    assert_agree(ops.remainder, torch.remainder, x[finite], y[finite])
    assert_agree(
        ops.floor_divide,
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        x[finite],
        y[finite],
    )
    x, y = np.meshgrid(np.arange(-7, 8), [-3, -2, -1, 1, 2, 3])
    for mine, torchs in ((ops.remainder, torch.remainder), (ops.floor_divide, torch.floor_divide)):
        got = Graph((), (mine(x, y),))()[0]
        np.testing.assert_array_equal(got, torchs(*map(torch.tensor, (x, y))).numpy())


@pytest.mark.parametrize("name", ["abs", "sqrt", "sign", "square", "log", "rsqrt", "reciprocal"])
def test_function_at_zero_and_infinity(name):
    x = np.array([-INF, -1, -0.0, 0.0, 1, INF])  # the sign of NaN is 0 in PyTorch, NaN in NumPy
    assert_agree(getattr(ops, name), getattr(torch, name), x)


@pytest.mark.parametrize("name", ["sinh", "cosh", "tanh", "atan", "erf", "exp", "expm1", "log1p"])
def test_function_far_out(name):
    x = np.array([-INF, -800, -30, -1e-9, 0, 1e-9, 30, 800, INF, NAN])
    assert_agree(getattr(ops, name), getattr(torch, name), x)


def test_logaddexp_with_infinities():
    x, y = (v.ravel() for v in np.meshgrid(*[[-INF, -800, 0.0, 1, 800]] * 2))
    different = x != y
    assert_agree(ops.logaddexp, torch.logaddexp, x[different], y[different])
    np.testing.assert_array_equal(
        ours(ops.logaddexp, [x, y])[0], theirs(torch.logaddexp, [x, y])[0]
    )


@pytest.mark.parametrize(
    ("name", "kwargs"), [("smooth_l1_loss", {"beta": 2.5}), ("huber_loss", {"delta": 2.5})]
)
def test_bent_losses_far_out(name, kwargs):
    x = np.array([0, 1e-30, -0.9, 1, 2.5, -2.6, 1e30, INF, -INF, NAN])
    assert_same_call(name, x, np.zeros(10), **kwargs, reduction="none")


def test_second_derivatives_of_logaddexp_where_its_operands_are_equal():
    x = mg.input("x", (2,), "float64")
    (dx,) = mg.grad(ops.logaddexp(x, [0.0, 1.0]).sum(), [x])
    (ddx,) = mg.grad(dx.sum(), [x])
    np.testing.assert_allclose(Graph((x,), (ddx,))(np.array([0.0, 1.0]))[0], [0.25, 0.25])


def test_where_keeps_the_gradient_from_the_other_branch():
    x = np.array([-1.0, 0, 2, INF])
    assert_agree(
        lambda x: ops.where(x > 0, x * 2, 3 - x),
        lambda x: torch.where(x > 0, x * 2, 3 - x),
        x,
    )


def test_gradient_of_take_adds_what_was_taken_twice():
    i = np.array([[0, -1, 0], [1, 1, 1]])
    assert_agree(
        lambda x: ops.take(x, i, 1),
        lambda x: x[:, torch.tensor(i)],
        real(2, 4, 3),
    )

"""Values and gradients of arithmetic agree with PyTorch at its edges."""

import functools

import numpy as np
import pytest
from beside_torch import F, assert_agree, needs_torch, ours, rows, theirs, torch
from samples import real

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph

pytestmark = needs_torch
INF, NAN = np.inf, np.nan
GRID = np.meshgrid(*[[-2.0, -1, -0.0, 0, 0.5, 1, 2, 3, INF]] * 2)
FINITE = [v[np.isfinite(GRID[0] + GRID[1])] for v in GRID]
DIVISIONS = [v[np.isfinite(GRID[0]) & (GRID[1] != 0)] for v in GRID]
FAR = [v.ravel() for v in np.meshgrid(*[[-INF, -800, 0.0, 1, 800]] * 2)]
DIFFERENT = [v[FAR[0] != FAR[1]] for v in FAR]
TIES = np.array([[1.0, 3, 3, 2], [5, 5, 5, 5], [NAN, 1, 1, 2], [-INF, -INF, 0, 0]])
ZEROS = np.array([[1.0, 2, 3], [0, 2, 3], [0, 2, 0], [0, 0, 0]])
BASES = np.array([-2.0, 0, 0.5, 3, INF])
BOUNDS = np.array([-INF, -2, -1, -0.5, 0, 0.5, 1, 2, INF, NAN])
EXTREMES = np.array([[1.0, 2, 3, 4], [800, -800, 0, 799], [-INF, 1, -INF, 2]])
NUMBERS = np.array([-INF, -1, -0.0, 0.0, 1, INF])  # the sign of NaN is 0 in PyTorch, NaN in NumPy
CUBE = real(3, 4, 2)
LINE = np.array([-INF, -800, -30, -1e-9, 0, 1e-9, 30, 800, INF, NAN])
ERRORS = [np.array([0, 1e-30, -0.9, 1, 2.5, -2.6, 1e30, INF, -INF, NAN]), np.zeros(10)]
# Each line has arrays x and y, or x alone, and what is computed of them.
CALLS = """
ZEROS: prod(x); prod(x, 0); prod(x, 1)
ZEROS[:1]: prod(x); prod(x, 0); prod(x, 1)
TIES: amax(x, 0); amax(x, 1); amax(x, (0, 1)); amin(x, 0); amin(x, 1); amin(x, (0, 1))
GRID: maximum(x, y); minimum(x, y)
FINITE: pow(x, y); atan2(x, y)
BASES: x**0; x**1; x**2; x**3; x**0.5; x**1.5; x**-1; x**-0.5; 2**x; 0**x
BOUNDS: clip(x, -1, 1); clip(x, None, 0); clip(x, 0, None); clip(x, 2, 1); clip(x, 0, 0)
EXTREMES: logsumexp(x, 1); logsumexp(x, (0, 1))
np.full((1, 4), -INF): logsumexp(x, 1); logsumexp(x, (0, 1))
np.array([[NAN, 1, 2, 3]]): logsumexp(x, 1); logsumexp(x, (0, 1))
CUBE[:0]: logsumexp(x, 0); logsumexp(x, (0, 1)); logsumexp(x, 1)
CUBE: logsumexp(x, 1); logsumexp(x, (0, 1)); var(x, correction=0)
CUBE: var(x, 1, correction=1); var(x, (0, 2), correction=1.5)
DIVISIONS: remainder(x, y); floor_divide(x, y)
NUMBERS: abs(x); sqrt(x); sign(x); square(x); log(x); rsqrt(x); reciprocal(x)
LINE: sinh(x); cosh(x); tanh(x); atan(x); erf(x); exp(x); expm1(x); log1p(x)
DIFFERENT: logaddexp(x, y)
ERRORS: smooth_l1_loss(x, y, beta=2.5, reduction="none")
ERRORS: huber_loss(x, y, delta=2.5, reduction="none")
np.array([-1.0, 0, 2, INF]): where(x > 0, x * 2, 3 - x)
"""


@pytest.mark.parametrize(("arrays", "call"), rows(CALLS))
def test_values_and_gradients_are_torchs(arrays, call):
    def computed(names, *operands):
        return eval(call, {**names, **dict(zip("xy", operands, strict=False))})

    mine = {**vars(ops), "amax": ops.max, "amin": ops.min}
    floor_divide = functools.partial(torch.div, rounding_mode="floor")
    torchs = {**vars(F), **vars(torch), "floor_divide": floor_divide}
    xs = eval(arrays)
    assert_agree(
        lambda *xs: computed(mine, *xs),
        lambda *xs: computed(torchs, *xs),
        *(xs if isinstance(xs, list | tuple) else [xs]),
    )


@pytest.mark.parametrize("axis", [1, (0, 1)])
def test_the_logarithm_of_a_sum_may_be_infinite(axis):
    x = [np.array([[INF, 1, 2, 3]])]
    (want,) = theirs(lambda x: torch.logsumexp(x, axis).detach(), x)[:1]
    np.testing.assert_array_equal(ours(lambda x: ops.logsumexp(x, axis), x)[0], want)
    want = theirs(torch.logaddexp, FAR)[0]
    np.testing.assert_array_equal(ours(ops.logaddexp, FAR)[0], want)


def test_integers_are_divided_as_in_torch():
    x, y = np.meshgrid(np.arange(-7, 8), [-3, -2, -1, 1, 2, 3])
    for name in ("remainder", "floor_divide"):
        (result,) = Graph((), (getattr(ops, name)(x, y),))()
        want = getattr(torch, name)(torch.tensor(x), torch.tensor(y))
        np.testing.assert_array_equal(result, want.numpy())


def test_second_derivatives_of_logaddexp_where_its_operands_are_equal():
    x = mg.input("x", (2,), "float64")
    (dx,) = mg.grad(ops.logaddexp(x, [0.0, 1.0]).sum(), [x])
    (ddx,) = mg.grad(dx.sum(), [x])
    np.testing.assert_allclose(Graph((x,), (ddx,))(np.array([0.0, 1.0]))[0], [0.25, 0.25])

"""Powers, however the exponent is given."""

import ml_dtypes
import numpy as np
import pytest
from elementwise_samples import assert_same, specials
from op_values import F32, F64, forward

import minigraph as mg
from minigraph.graph import FLOATS
from minigraph.ops.exponential import Pow

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
            (got,) = forward(Pow(), [x, y])
            wide, near = got.astype(F64), 4 * float(ml_dtypes.finfo(dtype).eps)
            np.testing.assert_allclose(wide, want.astype(F64), rtol=near)
            zero = want == 0
            np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("level", range(4))
def test_powers_of_special_values_are_the_same_at_every_level(device, level):
    large = np.abs(specials(F32)) >= np.finfo(F32).tiny  # programs flush denormals to zero
    x = specials(F32)[large | ~np.isfinite(specials(F32)) | (specials(F32) == 0)]
    given = mg.input("x", x.shape)
    ys = [given**exponent for exponent in EXPONENTS]
    function = mg.comp_graph(device, {"graph_opt_level": level}).compile([given], ys)
    for got, want in zip(function(x), powers_one_by_one(x), strict=True):
        kept = (np.abs(want) >= np.finfo(F32).tiny) | (want == 0) | ~np.isfinite(want)
        assert_same(got[kept], want[kept])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_powers_made_of_products_are_within_two_units_in_the_last_place(dtype):
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-2, 2, 10_000)) * rng.choice([-1, 1], 10_000)
    x = x.astype(dtype)
    given, exponents = mg.input("x", x.shape, dtype), [-2, -1, 2, 3, 4]
    function = mg.comp_graph("cpu", {"graph_opt_level": 3}).compile(
        [given], [given**exponent for exponent in exponents]
    )
    assert "pow" not in function.report().ops
    wide, eps = x.astype(np.longdouble), float(ml_dtypes.finfo(dtype).eps)
    for got, exponent in zip(function(x), exponents, strict=True):
        want = wide**exponent
        unit = np.exp2(np.floor(np.log2(np.abs(want)))) * eps
        assert (np.abs(got.astype(np.longdouble) - want) / unit).max() < 2

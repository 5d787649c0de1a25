"""Initialisers: torch's names, arguments, gains and distributions; what they refuse."""

import math

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn
from minigraph.nn import init


def made(shape=(120, 50, 3, 2), dtype="float32"):
    return mg.Parameter(np.full(shape, np.nan), dtype=dtype)


SCALED = [
    ("xavier_uniform_", {}),
    ("xavier_uniform_", {"gain": 2.5}),
    ("xavier_normal_", {"gain": 0.5}),
    ("kaiming_uniform_", {"a": math.sqrt(5)}),
    ("kaiming_uniform_", {"mode": "fan_out", "nonlinearity": "relu"}),
    ("kaiming_uniform_", {"nonlinearity": "tanh"}),
    ("kaiming_normal_", {"a": 0.2}),
    ("kaiming_normal_", {"mode": "fan_out", "nonlinearity": "linear"}),
    ("uniform_", {"a": -3.0, "b": 5.0}),
    ("normal_", {"mean": 1.0, "std": 0.3}),
    ("trunc_normal_", {}),
    ("trunc_normal_", {"std": 0.02}),
    ("trunc_normal_", {"mean": 1.0, "std": 2.0, "a": 0.5, "b": 4.0}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("name", "kwargs"), SCALED)
def test_distributions_are_torchs(name, kwargs, dtype, torch):
    generator = torch.Generator().manual_seed(0)
    want = getattr(torch.nn.init, name)(torch.empty(120, 50, 3, 2), **kwargs, generator=generator)
    parameter = made(dtype=dtype)
    nn.manual_seed(0)
    assert getattr(init, name)(parameter, **kwargs) is parameter
    result = parameter.numpy().astype(float)
    spread = want.std().item()
    at = [0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1]
    quantiles = [np.quantile(x.ravel(), at) for x in (result, want.numpy())]
    bounded = name.endswith("uniform_") or abs(quantiles[0][-1]) < 3.5 * spread
    here = slice(None) if bounded else slice(1, -1)
    np.testing.assert_allclose(quantiles[0][here], quantiles[1][here], atol=0.1 * spread)
    if "b" in kwargs and name == "trunc_normal_":
        assert kwargs["a"] <= result.min() < result.max() <= kwargs["b"]


def test_a_truncated_normal_distribution_is_right_far_in_its_tail():
    nn.manual_seed(0)
    parameter = made((100_000,), "float64")
    init.trunc_normal_(parameter, a=8, b=1e9)
    values = np.sort(parameter.numpy())
    for share in (0.1, 0.5, 0.9):
        at = values[int(share * len(values))]
        beyond = math.erfc(at / math.sqrt(2)) / math.erfc(8 / math.sqrt(2))
        assert beyond == pytest.approx(1 - share, rel=0.05)
    assert values[0] >= 8


def test_constants_are_torchs(torch):
    for name, args in (("constant_", [2.5]), ("zeros_", []), ("ones_", []), ("eye_", [])):
        for dtype in ("float32", "float64", "bfloat16"):
            parameter = made((3, 5), dtype)
            assert getattr(init, name)(parameter, *args) is parameter
            want = getattr(torch.nn.init, name)(torch.empty(3, 5), *args)
            np.testing.assert_array_equal(parameter.numpy().astype("float32"), want)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (8, 3, 2, 2), (5, 2, 3), (0, 3), (3, 0)])
@pytest.mark.parametrize("gain", [1.0, 2.0])
def test_an_orthogonal_matrix_has_orthonormal_rows_or_columns(shape, gain):
    weights = init.orthogonal_(made(shape, "float64"), gain).numpy()
    matrix = weights.reshape(shape[0], math.prod(shape[1:]))
    small = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(small, gain**2 * np.eye(len(small)), atol=1e-12)


def test_orthogonal_matrices_are_equally_likely():
    sums = np.zeros((3, 3))
    for _ in range(2000):
        sums += init.orthogonal_(made((3, 3), "float64")).numpy()
    assert np.abs(sums / 2000).max() < 0.06  # without the signs the diagonal's mean is not 0


def test_gains_are_torchs(torch):
    for name in init.GAINS:
        assert init.calculate_gain(name) == pytest.approx(torch.nn.init.calculate_gain(name))
    for slope in (0, 0.3, -2):
        want = torch.nn.init.calculate_gain("leaky_relu", slope)
        assert init.calculate_gain("leaky_relu", slope) == pytest.approx(want)


def test_initialisers_are_applied_to_the_layers_of_a_network_and_depend_on_the_seed():
    def start(module):
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            init.zeros_(module.bias)

    weights = []
    for seed in (1, 1, 2):
        nn.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).apply(start)
        assert not net[2].bias.numpy().any()
        weights.append(net[2].weight.numpy())
    assert (weights[0] == weights[1]).all()
    assert (weights[0] != weights[2]).all()

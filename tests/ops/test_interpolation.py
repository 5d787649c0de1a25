"""`interpolate` and its layers against torch's: values, gradients, text; what is refused."""

import numpy as np
import pytest
from beside_torch import assert_agree
from needs import needs_compiler
from samples import real

import minigraph as mg
from minigraph import nn, ops
from minigraph.graph import Graph

torch = pytest.importorskip("torch")

TARGETS = [
    {"size": 7},
    {"size": 1},
    {"size": 11},
    {"scale_factor": 2},
    {"scale_factor": 1.0},
    {"scale_factor": 0.5},
    {"scale_factor": 1.7},
    {"scale_factor": 1.7, "recompute_scale_factor": True},
    {"scale_factor": 3, "recompute_scale_factor": False},
]
MODES = [
    ((2, 3, 5), "nearest", None),
    ((2, 3, 5), "linear", None),
    ((2, 3, 5), "linear", True),
    ((2, 3, 4, 6), "nearest", None),
    ((2, 3, 4, 6), "bilinear", False),
    ((2, 3, 4, 6), "bilinear", True),
    ((1, 2, 3, 4, 5), "nearest", None),
    ((1, 2, 3, 4, 5), "trilinear", None),
    ((2, 3, 2, 2), "bilinear", True),
]
EACH = [
    ((2, 3, 4, 6), {"size": (9, 2), "mode": "bilinear"}),
    ((2, 3, 4, 6), {"size": (2, 13), "mode": "nearest"}),
    ((2, 3, 4, 6), {"scale_factor": (2.5, 0.5), "mode": "bilinear", "align_corners": True}),
    ((1, 2, 3, 4, 5), {"scale_factor": (2.0, 1.0, 0.7), "mode": "trilinear"}),
]
CASES = [
    (shape, {**target, "mode": mode, "align_corners": align})
    for shape, mode, align in MODES
    for target in TARGETS
] + EACH


def assert_torchs(shape, kwargs, dtype="float32", rtol=2e-6, level=None):
    assert_agree(
        lambda x: ops.interpolate(x, **kwargs),
        lambda x: torch.nn.functional.interpolate(x, **kwargs),
        real(*shape).astype(dtype),
        rtol=rtol,
        atol=rtol * 10,
        level=level,
    )


@pytest.mark.parametrize(("shape", "kwargs"), CASES)
def test_values_and_gradients_are_torchs(shape, kwargs):
    assert_torchs(shape, kwargs, "float64", 1e-12)
    assert_torchs(shape, kwargs)


@needs_compiler
@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize(("shape", "kwargs"), CASES[::7] + EACH)
def test_native_kernels_compute_it_at_every_level(shape, kwargs, level):
    assert_torchs(shape, kwargs, level=level)


@pytest.mark.parametrize("n", [3, 5, 6, 7, 10, 49])
def test_the_nearest_element_is_torchs_where_it_is_decided_by_rounding(n):
    x = np.arange(n, dtype="float32")[None, None]
    for target in [{"size": m} for m in range(1, 60)] + [
        {"scale_factor": f} for f in (1.1, 1.3, 2.3, 3.3, 0.7, 0.9, 2.999)
    ]:
        want = torch.nn.functional.interpolate(torch.tensor(x), **target).numpy()
        (result,) = Graph((), (ops.interpolate(x, **target),))()
        np.testing.assert_array_equal(result, want, err_msg=str(target))


def test_the_nearest_element_is_taken_of_any_type():
    for dtype in ("int64", "uint8", "bool", "bfloat16"):
        x = mg.input("x", (1, 1, 3), dtype)
        (result,) = Graph((x,), (ops.interpolate(x, 6),))(np.array([[[0, 1, 0]]]).astype(x.dtype))
        np.testing.assert_array_equal(result.astype(int), [[[0, 0, 1, 1, 0, 0]]])


def test_infinity_and_nan_reach_their_neighbours_only():
    x = np.zeros((1, 1, 8, 8), "float32")
    x[0, 0, 2, 2], x[0, 0, 6, 6] = np.nan, np.inf
    want = torch.nn.functional.interpolate(torch.tensor(x), scale_factor=2, mode="bilinear")
    (result,) = Graph((), (ops.interpolate(x, scale_factor=2, mode="bilinear"),))()
    np.testing.assert_array_equal(result, want.numpy())


LAYERS = [
    ("Upsample", {"scale_factor": 2}),
    ("Upsample", {"size": (5, 9), "mode": "bilinear"}),
    ("Upsample", {"scale_factor": (2, 1.5), "mode": "bilinear", "align_corners": True}),
    ("UpsamplingNearest2d", {"scale_factor": 2}),
    ("UpsamplingNearest2d", {"size": (5, 9)}),
    ("UpsamplingBilinear2d", {"scale_factor": 2}),
    ("UpsamplingBilinear2d", {"size": 7}),
]


@pytest.mark.parametrize(("name", "kwargs"), LAYERS)
def test_layers_are_torchs(name, kwargs):
    ours, theirs = getattr(nn, name)(**kwargs), getattr(torch.nn, name)(**kwargs)
    assert repr(ours) == repr(theirs)
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 6)).astype("float32")
    (result,) = Graph((), (ours(mg.graph.constant(x)),))()
    np.testing.assert_allclose(result, theirs(torch.tensor(x)).numpy(), rtol=1e-5, atol=1e-6)

"""Without oneDNN, as on processors other than x86-64: minigraph's own kernels compute networks."""

import ctypes
import platform
import warnings

import numpy as np
import pytest
from native_and_reference import both
from needs import needs_compiler
from small_functions import real

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.devices.cpu import onednn

pytestmark = needs_compiler

BLOCK = 8  # channels, where no library says more
SIZES = (4, 3, 21, 21)
levels = pytest.mark.parametrize("level", [0, 3])


@pytest.fixture(autouse=True)
def no_library(monkeypatch):
    monkeypatch.setattr(onednn, "library", lambda: None)


def function(device, xs, ys, **options):
    return mg.comp_graph(device, {"autotune": "off", **options}).compile(xs, ys)


def network():
    """Return layers of every kind of kernel that there is."""
    nn.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(16, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 16, 5, padding=2),
        nn.Conv2d(16, 32, 1),
        nn.AvgPool2d(2),
        nn.Conv2d(32, 16, 3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def training(device, options):
    """Return a training step."""
    net, x, y = network(), mg.input("x", (4, 3, 32, 32)), mg.input("y", (4,), "int64")
    loss = ops.cross_entropy(net(x), y)
    updates = {**optim.Adam(net.parameters(), lr=3e-3).minimize(loss), **net.updates()}
    return mg.comp_graph(device, options).compile([x, y], loss, updates)


@pytest.mark.parametrize("options", [{"autotune": "off"}, {"autotune.budget": 3.0}])
@levels
def test_a_network_trains_as_the_reference_does_and_nothing_runs_in_numpy(level, options):
    data = real(4, 3, 32, 32), np.arange(4)
    step = training("cpu", {"graph_opt_level": level, **options})
    reference = training("reference", {})
    losses = [[float(each(*data)) for _ in range(4)] for each in (step, reference)]
    np.testing.assert_allclose(*losses, rtol=2e-3)
    assert losses[0][-1] < losses[0][0]
    assert step.report().numpy == []
    assert {maker.partition(" ")[0] for _, maker, _ in step.report().steps} == {"c"}


def test_before_anything_is_measured_images_stay_in_blocks_of_channels(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(tmp_path))
    report = training("cpu", {"graph_opt_level": 3, "autotune": "cached"}).report()
    assert {a.origin for a in report.algorithms} == {"heuristic"}
    reorders = [name for name, _, _ in report.steps if name == "reorder"]
    assert any("in nChw8c" in str(record.fired) for record in report.passes)
    assert len(reorders) < 6  # each of 15 convolutions and gradients would have two or three


@pytest.mark.parametrize("shape", [(2, 16, 5, 3), (1, 8, 1, 1), (3, 40, 4, 7)])
def test_reorders_move_every_element(shape):
    x, weights = mg.input("x", shape), real(shape[1], shape[1], 1, 1)
    actual, expected = (
        function(device, [x], ops.conv2d(x, weights), graph_opt_level=0)
        for device in ("cpu", "reference")
    )
    assert [maker for _, maker, _ in actual.report().steps] == ["c direct with reorders"]
    np.testing.assert_allclose(actual(real(*shape)), expected(real(*shape)), rtol=0, atol=2e-5)


# The side of images, window, stride and padding.
AVERAGES = [
    (6, 2, 2, 0),
    (7, 7, 7, 0),
    (8, (2, 4), (2, 4), 0),
    (7, 2, 2, 0),
    (6, (3, 6), (3, 6), 0),
    (9, 3, 1, 1),
    (20, (4, 17), (2, 3), (1, 5)),
    (9, (2, 3), 4, 1),
]


def averages(x, *args):
    """Return averages of a convolution, and the gradient of its weights."""
    w = mg.Parameter(real(BLOCK, BLOCK, 3, 3, seed=1))
    y = ops.avg_pool2d(ops.conv2d(x, w, padding=1), *args)
    return y, *mg.grad(ops.square(y).sum(), [w])


@levels
def test_averages_are_native(level):
    cases = [
        (lambda x, args=args: averages(x, *args), real(2, BLOCK, size, size))
        for size, *args in AVERAGES
    ]
    for actual, expected in both(cases, graph_opt_level=level, autotune="off"):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_nan_and_infinity_of_an_operand_reach_their_own_results_alone():
    x, w = real(9, 40), real(40, 19)
    x[1, 33], w[7, 18], w[0, 2] = np.nan, np.inf, -np.inf
    inputs = mg.input("x", x.shape), mg.input("w", w.shape)
    actual = function("cpu", inputs, inputs[0] @ inputs[1])(x, w)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(x @ w))


def test_convolutions_of_groups_and_of_few_channels_are_native():
    def build(x, w):
        y = ops.conv2d(x, w, groups=6, padding=1)
        return y, *mg.grad(ops.square(y).sum(), [x, w])

    case = build, real(2, 12, 9, 9), real(6, 2, 3, 3, seed=1)
    for actual, expected in both([case], graph_opt_level=3, autotune="off"):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_only_where_it_can_be_installed_a_warning_says_how(machine, monkeypatch):
    monkeypatch.undo()

    def missing(name):
        raise OSError(f"{name} is not there")

    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr("minigraph.errors._warned", set())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert onednn.library.__wrapped__() is None
    assert ["pip install onednn-cpu-gomp" in str(w.message) for w in warned] == [True] * (
        machine == "x86_64"
    )


def test_amp_says_what_it_needs():
    x = mg.input("x", (2, 8))
    with pytest.raises(mg.DeviceError, match="oneDNN is missing"):
        function("cpu", [x], x @ real(8, 8), amp="bfloat16")

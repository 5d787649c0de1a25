"""Warnings and reports of steps that run in NumPy although native kernels exist."""

import warnings

import pytest
from long_runs import long
from needs import needs_both

import minigraph as mg
from minigraph import errors, nn, ops
from minigraph.bench import ours
from minigraph.bench.cases import NETWORKS
from minigraph.bench.worker import Task
from minigraph.graph import Op

pytestmark = needs_both


def averages(n, window=1025, device="cpu"):
    """Averages of windows with padding, whose rows are too long for kernels."""
    x = mg.input("x", (4, 8, n, 1100))
    return mg.comp_graph(device).compile([x], ops.relu(ops.avg_pool2d(x, (1, window), 1, (0, 1))))


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(errors, "_warned", set())


def test_large_work_that_numpy_computes_warns_once():
    with pytest.warns(mg.MinigraphWarning, match="no kernel of avg_pool2d fits .*: NumPy") as log:
        averages(300)
        averages(301)
    assert len(log) == 1


def test_small_work_and_other_devices_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        averages(1)
        averages(300, device="reference")
        averages(300, window=5)


def test_the_report_says_which_steps_numpy_computes_and_why():
    report = averages(1).report()
    (line,) = report.numpy
    assert line.startswith("avg_pool2d")
    assert "(no kernel of avg_pool2d fits its shapes and types), made at" in line
    assert report.section("numpy") == line
    assert 'section("numpy"): 1 of 2 steps' in str(report)
    assert averages(1, window=5).report().numpy == []
    assert averages(1, device="reference").report().numpy == []


def test_an_op_that_has_no_kernel_at_all_is_named_and_does_not_warn(monkeypatch):
    monkeypatch.setattr(Op, "registry", {})

    class Rotated(Op):
        """An op of a user's program, for which nobody wrote C."""

        def infer(self, x):
            return x

    x = mg.input("x", (2, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = mg.comp_graph("cpu").compile([x], Rotated()(x)).report()
    assert any("has no kernel" in line for line in report.numpy)


# ResNet-50 has what ResNet-18 has and wider points, MobileNetV2 that and "inverted residual".
DEEP = ("resnet50", "mobilenetv2")


@pytest.mark.parametrize("name", [long(n) if n in DEEP else n for n in NETWORKS])
def test_no_step_of_a_network_runs_in_numpy_where_nothing_is_measured(name):
    task = Task(name, "3", "cpu", 1, None, True, "float32", 0.0)
    cg = mg.comp_graph("cpu", {"graph_opt_level": 3, "autotune": "off"})
    step, _ = ours.training(cg, task.subject, task.subject.network(ours.LIBRARY))
    assert not step.report().numpy


# Channels, then convolutions one after the other: channels, window, stride, padding, dilation,
# groups.
CHAINS = {
    "to one channel": (3, [(24, 3, 1, 0, 1), (1, 1, 1, 0, 1), (32, 3, 2, 1, 1)]),
    "of one channel": (1, [(32, 1, 1, 0, 1)]),
    "dilated": (16, [(24, 3, 1, 1, 1), (8, 2, 2, 1, 1), (5, 5, 1, 2, 2)]),
    "inverted residual": (16, [(96, 1), (96, 3, 2, 1, 1, 96), (24, 1)]),
    "a point with dilation": (4, [(16, 1, 1, 0, 2), (48, 5, 1, 0, 1), (48, 1, 2, 0, 2)]),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_no_convolution_runs_in_numpy_because_it_is_small(chain):
    channels, windows = CHAINS[chain]
    y = x = mg.input("x", (2, channels, 12, 12))
    weights = []
    for window in windows:
        layer = nn.Conv2d(y.shape[1], *window)
        weights += layer.parameters()
        y = ops.relu(layer(y))
    gradients = mg.grad(ops.square(y).sum(), [x, *weights])
    options = {"graph_opt_level": 3, "autotune": "off"}
    assert not mg.comp_graph("cpu", options).compile([x], gradients).report().numpy

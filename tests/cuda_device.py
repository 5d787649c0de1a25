"""Helpers for the tests that need a GPU."""

import numpy as np
import pytest
from residual_block import ResidualBlock

import minigraph as mg
from minigraph import nn, ops, optim


def require():
    """Skip a module where there is no device, as one: its last line, after what may be wrong there.

    Its thousands of tests need not be told to the process that collects results.
    """
    try:
        mg.comp_graph("cuda")
    except mg.DeviceError as error:
        pytest.skip(str(error), allow_module_level=True)


def on_host(array):
    return array if isinstance(array, np.ndarray) else array.get()


def close(actual, expected, tolerance):
    """Equal to a tolerance of the largest element; infinities and NaN at the same places."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, expected)
        return
    x, y = actual.astype(np.float64), expected.astype(np.float64)
    scale = np.abs(y).max(initial=1e-30, where=np.isfinite(y))
    np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale)


# ---------------------------------------------------------------- a network to train


def network(dropout=0.0):
    """Return a small residual network with weights that are the same every time."""
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        ResidualBlock(32),
        ResidualBlock(32),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(128, 10),
    )
    rng = np.random.default_rng(0)
    for name, parameter in net.named_parameters():
        if parameter.ndim > 1:
            scale = (2 / np.prod(parameter.shape[1:])) ** 0.5
            parameter.assign((rng.normal(size=parameter.shape) * scale).astype(np.float32))
        elif name.endswith("bias"):
            parameter.assign(np.zeros(parameter.shape, np.float32))
    return net


BATCH = 16  # images


def batch():
    rng = np.random.default_rng(1)
    return rng.normal(size=(BATCH, 3, 16, 16)).astype(np.float32), rng.integers(0, 10, BATCH)


def training(device, dropout=0.0, **options):
    """Return a step of training; options of the autotuner are named without "autotune."."""
    net = network(dropout)
    x, labels = mg.input("x", (BATCH, 3, 16, 16)), mg.input("labels", (BATCH,), "int64")
    loss = ops.cross_entropy(net(x), labels)
    updates = {**optim.Adam(net.parameters(), lr=1e-4).minimize(loss), **net.updates()}
    tuner = ("budget", "deterministic", "workspace_limit")
    named = {f"autotune.{n}" if n in tuner else n: value for n, value in options.items()}
    return mg.comp_graph(device, named).compile([x, labels], loss, updates=updates)


SIDE = 4096  # of matrices whose product takes a GPU some time
STEPS = 20  # of training, unless a test says otherwise


def losses(device, steps=None, **options):
    """Return the losses of some steps of training, and the step."""
    step = training(device, **options)
    return np.array([float(on_host(step(*batch()))) for _ in range(steps or STEPS)]), step


def tolerance(expected):
    """Return how far a result may be from an array that is expected, relative to its size."""
    return {2: 2e-2, 4: 1e-4, 8: 1e-10}.get(expected.dtype.itemsize, 0)

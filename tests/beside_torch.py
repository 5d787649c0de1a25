"""Values and gradients of a function, ours and PyTorch's."""

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph

try:
    import torch
    from torch.nn import functional as F
except ImportError:
    torch = F = None

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


def ours(fn, xs, level=None):
    """The value of `fn` and its gradients, each output weighted by its own random number.

    NumPy computes them, or native kernels at a level.
    """
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    y = fn(*inputs)
    floats = [x for x in inputs if x.dtype.kind == "f"]
    grads = mg.grad(ops.sum(y * weights(y.shape)), floats)
    if level is None:
        return Graph(tuple(inputs), (y, *grads))(*xs)
    options = {"graph_opt_level": level, "autotune": "off"}
    function = mg.comp_graph("cpu", options).compile(inputs, [y, *grads])
    assert not function.report().numpy
    return function(*xs)


def theirs(fn, xs):
    inputs = [torch.tensor(x, requires_grad=x.dtype.kind == "f") for x in xs]
    y = fn(*inputs)
    floats = [x for x in inputs if x.requires_grad]
    grads = [torch.zeros_like(x) for x in floats]
    if y.requires_grad:
        loss = (y * torch.from_numpy(weights(tuple(y.shape)))).sum()
        grads = torch.autograd.grad(loss, floats, materialize_grads=True)
    return y.detach().numpy(), *(g.numpy() for g in grads)


def weights(shape):
    return np.asarray(np.random.default_rng(9).uniform(0.5, 1.5, shape))


def assert_agree(mine, torchs, *xs, rtol=1e-10, atol=1e-12, level=None):
    for actual, expected in zip(ours(mine, xs, level), theirs(torchs, xs), strict=True):
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


def rows(table):
    """Return each call of a table's lines, "arguments: call; call"."""
    pairs = (line.split(": ", 1) for line in table.strip().splitlines())
    return [(xs, call) for xs, calls in pairs for call in calls.split("; ")]

"""A module and torch's of the same name and arguments: results, gradients, states."""

import inspect

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, ops
from minigraph.graph import Graph

torch = pytest.importorskip("torch")


def floats(*shape, seed=0, low=-2, high=2):
    return np.random.default_rng(seed).uniform(low, high, shape)


def integers(*shape, below):
    return np.random.default_rng(0).integers(0, below, shape)


def share(*shape):
    """Probabilities along axis 1."""
    values = floats(*shape, seed=3, low=0.1, high=1)
    return values / values.sum(1, keepdims=True)


def weights(shape):
    return floats(*shape, seed=9, low=0.5, high=1.5)


def ours(module, xs):
    """The result and the gradients for the float inputs and the parameters."""
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    y = module(*inputs)
    wrt = [x for x in inputs if x.dtype.kind == "f"]
    wrt += [p for p in module.parameters() if p.trainable]
    grads = mg.grad(ops.sum(y * weights(y.shape)), wrt)
    return Graph(tuple(inputs), (y, *grads))(*xs)


def theirs(module, xs):
    inputs = [torch.tensor(x, requires_grad=x.dtype.kind == "f") for x in xs]
    y = module(*inputs)
    wrt = [x for x in (*inputs, *module.parameters()) if x.requires_grad]
    loss = (y * torch.from_numpy(weights(tuple(y.shape)))).sum()
    grads = torch.autograd.grad(loss, wrt, materialize_grads=True)
    return y.detach().numpy(), *(g.numpy() for g in grads)


def assert_torchs(name, kwargs, xs, training=True, rtol=1e-9):
    tensors = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
    theirs_module = getattr(torch.nn, name)(**tensors).double().train(training)
    dtype = (
        {"dtype": "float64"} if "dtype" in inspect.signature(getattr(nn, name)).parameters else {}
    )
    module = getattr(nn, name)(**kwargs, **dtype).train(training)
    with torch.no_grad():
        for i, p in enumerate(theirs_module.parameters()):
            p.copy_(torch.from_numpy(floats(*p.shape, seed=20 + i, low=0.5, high=1.5)))
    state = theirs_module.state_dict()
    assert list(module.state_dict()) == list(state)
    for key, value in module.state_dict().items():
        assert value.shape == tuple(state[key].shape), key
    module.load_state_dict(state)
    theirs_module.load_state_dict(
        {k: torch.from_numpy(np.array(v)) for k, v in module.state_dict().items()}
    )
    for got, want in zip(ours(module, xs), theirs(theirs_module, xs), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-11)

"""A module and torch's of the same name and arguments: results, gradients, states."""

import inspect

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, ops
from minigraph.graph import Graph

torch = pytest.importorskip("torch")
SHOWN_OTHERWISE = "InstanceNorm2d", "TransformerEncoderLayer"  # torch shows what ours do not take


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


def assert_torchs(call, xs, training=True, rtol=1e-9, **arrays):
    """The module that a call makes, which may name arrays, computes and shows what torch's does."""
    tensors = {name: torch.tensor(value) for name, value in arrays.items()}
    theirs_module = eval(call, {**vars(torch.nn), **tensors}).double().train(training)
    name = call.partition("(")[0]
    names, expected = (
        [*inspect.signature(getattr(lib, name)).parameters] for lib in (nn, torch.nn)
    )
    if "dtype" in names:
        call = f"{call[:-1]}{'' if call.endswith('()') else ', '}dtype='float64')"
    module = eval(call, {**vars(nn), **arrays}).train(training)
    if name not in SHOWN_OTHERWISE and "Loss" not in name:
        assert repr(module) == repr(theirs_module)
        first = names[: names.index("dtype") if "dtype" in names else None][:3]
        assert first == expected[: len(first)]
    with torch.no_grad():
        tensors = [*theirs_module.parameters(), *theirs_module.buffers()]
        for i, p in enumerate(x for x in tensors if x.is_floating_point()):
            p.copy_(torch.from_numpy(floats(*p.shape, seed=20 + i, low=0.5, high=1.5)))
    state = theirs_module.state_dict()
    assert list(module.state_dict()) == list(state)
    for key, value in module.state_dict().items():
        assert value.shape == tuple(state[key].shape), key
    module.load_state_dict(state)
    theirs_module.load_state_dict(
        {k: torch.from_numpy(np.array(v)) for k, v in module.state_dict().items()}
    )
    for result, want in zip(ours(module, xs), theirs(theirs_module, xs), strict=True):
        assert result.shape == want.shape
        np.testing.assert_allclose(result, want, rtol=rtol, atol=1e-11)

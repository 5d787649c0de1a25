"""Gradients of a converted model at the points where an operator has a convention of its own."""

import numpy as np
import pytest

import minigraph as mg

torch = pytest.importorskip("torch")
mgt = pytest.importorskip("minigraph.torch")
F = torch.nn.functional


class Model(torch.nn.Module):
    """A module that computes what a function does."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def agrees(function, *tensors):
    """Assert that a function and its gradients for all tensors of floats are those of torch."""
    given = [x.clone().requires_grad_(x.is_floating_point()) for x in tensors]
    y = function(*given)
    wanted = torch.autograd.grad(y.sum(), [x for x in given if x.requires_grad])
    net = mgt.convert(Model(function), tensors)
    inputs = [mg.input(f"x{i}", tuple(x.shape), x.numpy().dtype) for i, x in enumerate(tensors)]
    made = net(*inputs)
    floats = [x for x, given in zip(inputs, tensors, strict=True) if given.is_floating_point()]
    compiled = mg.comp_graph("reference").compile(inputs, [made, *mg.grad(made.sum(), floats)])
    found = compiled(*(x.numpy() for x in tensors))
    for ours, theirs in zip(found, (y.detach(), *wanted), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-12)


def test_a_padding_token_is_not_learnt():
    tokens = torch.tensor([[0, 2, 4], [2, 2, 0]])
    for padding in (None, 0, 2, -1):
        agrees(
            lambda w, x, p=padding: F.embedding(x, w, p) ** 2, torch.randn(5, 3).double(), tokens
        )


def test_a_gradient_that_depends_on_how_often_a_token_occurs_is_refused():
    layer = torch.nn.Embedding(5, 3, scale_grad_by_freq=True)
    tokens = torch.tensor([0, 2])
    with pytest.raises(mg.GraphError, match=r"aten.embedding.*no scale_grad_by_freq"):
        mgt.convert(layer, (tokens,))(mg.input("tokens", (2,), "int64"))


def test_a_negative_token_is_an_error():
    tokens = mg.input("tokens", (2,), "int64")
    made = mgt.convert(torch.nn.Embedding(5, 3), (torch.tensor([0, 2]),))(tokens)
    with pytest.raises(mg.GraphError, match="-1"):
        mg.comp_graph("reference").compile([tokens], made)(np.array([0, -1]))

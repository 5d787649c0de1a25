"""Functions of tensors that `minigraph.torch` converts together, beside PyTorch's own results."""

import itertools

import numpy as np
import torch

import minigraph as mg
import minigraph.torch as mgt


class Functions(torch.nn.Module):
    """A module that computes what functions do, each of a tuple of tensors."""

    def __init__(self, *functions):
        super().__init__()
        self.functions = functions

    def forward(self, *tuples):
        return [f(*xs) for f, xs in zip(self.functions, tuples, strict=True)]


def converted(cases):
    """Return the input nodes and the result of each case: a function and example tensors.

    One conversion serves all, as PyTorch's tracer takes half a second for any model.
    """
    functions, tuples = [f for f, *_ in cases], [tuple(xs) for _, *xs in cases]
    nodes = [
        tuple(mg.input(f"x{i}", tuple(x.shape), x.numpy().dtype) for i, x in enumerate(xs))
        for xs in tuples
    ]
    return list(zip(nodes, mgt.convert(Functions(*functions), tuples)(*nodes), strict=True))


def assert_agrees(function, nodes, result, *batches):
    """Assert that a function's value and gradients for each batch of tensors are PyTorch's."""
    floats = [x.is_floating_point() for x in batches[0]]
    grads = mg.grad(result.sum(), [*itertools.compress(nodes, floats)])
    compiled = mg.comp_graph("reference").compile(nodes, [result, *grads])
    for tensors in batches:
        xs = [
            x.clone().requires_grad_(is_float) for x, is_float in zip(tensors, floats, strict=True)
        ]
        y = function(*xs)
        expected = torch.autograd.grad(
            y.sum(), [*itertools.compress(xs, floats)], materialize_grads=True
        )
        results = compiled(*(x.numpy() for x in tensors))
        for ours, theirs in zip(results, (y.detach(), *expected), strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-12)

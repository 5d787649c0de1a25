"""Models that do what a function does, captured and interpreted."""

import numpy as np
import torch
from torch.utils import _pytree as pytree

import minigraph as mg
from minigraph.graph import Node
from minigraph.torch.capture import capture
from minigraph.torch.interpret import interpret

X = torch.arange(12.0).reshape(3, 4) - 5


class Model(torch.nn.Module):
    """A module that does what a function of itself and its inputs does."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.linear = torch.nn.Linear(4, 4)
        self.recurrent = torch.nn.LSTM(4, 4, 2, batch_first=True, bidirectional=True)
        self.norm = torch.nn.SyncBatchNorm(4, momentum=None)  # which branches on a tensor's value
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("ones", torch.ones(4), persistent=False)
        self.held = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def interpreted(function, *args, sizes=None, **kwargs):
    """Return the inputs of a function of a model, what it gives and changes, and the model."""
    torch.manual_seed(0)
    model = Model(function)
    program = capture("test", model, args, sizes, kwargs)
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    first = ("n",) if sizes else ()
    inputs = [
        mg.input(f"x{i}", (*first, *x.shape[len(first) :]), str(x.dtype).removeprefix("torch."))
        for i, x in enumerate(tensors)
    ]
    named_tensors = [*model.named_parameters(), *model.named_buffers()]
    state = {name: mg.Parameter(x.detach().numpy().copy(), name) for name, x in named_tensors}
    return inputs, interpret("test", program, inputs, state), model


def agrees(function, *args, sizes=None, others=(), **kwargs):
    """Assert that a function gives what torch does, for its arguments and for others."""
    inputs, result, model = interpreted(function, *args, sizes=sizes, **kwargs)
    nodes = [x for x in pytree.tree_leaves(result.outputs) if isinstance(x, Node)]
    nodes += result.changes.values()
    compiled = mg.comp_graph("reference").compile(inputs, nodes)
    for call in (args, *others):
        tensors = [x for x in pytree.tree_leaves((call, kwargs)) if isinstance(x, torch.Tensor)]
        actual = compiled(*(x.numpy() for x in tensors))
        with torch.no_grad():
            expected = model(*call, **kwargs)
        arrays = [x.numpy() for x in pytree.tree_leaves(expected) if isinstance(x, torch.Tensor)]
        arrays += [model.get_buffer(name).numpy() for name in result.changes]
        for x, y in zip(actual, arrays, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    return result


def makes_a_parameter(model, x):
    model.linear.scale = torch.nn.Parameter(torch.ones(4))
    return x * model.linear.scale

"""What people try who know PyTorch is answered in one line that says what to do here."""

import re
import warnings

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, ops, optim

NET = nn.Sequential(nn.Linear(4, 3))
X = mg.input("x", (2, 4))
ADAM = optim.Adam(NET.parameters())

HABITS = [
    (lambda: ADAM.step(), AttributeError, "Adam has no step: minimize(loss) of an optimizer gives"),
    (lambda: ADAM.zero_grad(), AttributeError, "Adam has no zero_grad: gradients are expressions"),
    (lambda: ADAM.param_groups, AttributeError, "optimizer.lr is the learning rate"),
    (lambda: NET.to("cuda"), AttributeError, "Sequential has no to: functions are compiled for"),
    (lambda: NET.cuda(), AttributeError, 'mg.comp_graph(device="cuda")'),
    (lambda: NET.half(), AttributeError, "layers are made in a dtype"),
    (lambda: NET.zero_grad(), AttributeError, "there is nothing to clear; minimize(loss)"),
    (lambda: NET.register_parameter("w", None), AttributeError, "attributes register themselves"),
    (lambda: NET[0].weight.data, AttributeError, "p.assign(value) sets it"),
    (lambda: NET(X).item(), AttributeError, "compile it, mg.comp_graph().compile("),
    (lambda: optim.SGD(NET.parameters, 0.1), mg.GraphError, "is the method parameters, which is"),
    (lambda: mg.grad(NET(X).sum(), NET.parameters), mg.GraphError, "parameters, which is not call"),
    (
        lambda: mg.comp_graph().compile([X], NET(X), updates=NET.updates),
        mg.GraphError,
        "updates is the method updates, which is not called",
    ),
    (lambda: optim.Adam(NET), mg.GraphError, "Sequential is a module; give what its parameters()"),
    (
        lambda: nn.functional,
        AttributeError,
        "functions of expressions are in minigraph.ops: ops.relu",
    ),
    (lambda: nn.utils, AttributeError, "minimize(loss, clip_norm=1.0) of an optimizer clips"),
    (lambda: ops.cat, AttributeError, "minigraph.ops has no cat: ops.concat joins arrays"),
    (
        lambda: ops.matmult,
        AttributeError,
        "has no attribute 'matmult'; the nearest is matmul",
    ),
    (
        lambda: optim.lr_scheduler,
        AttributeError,
        "has schedules, such as cosine(adam, T_max=10)",
    ),
    (lambda: mg.no_grad(), AttributeError, "minigraph has no no_grad: gradients are only computed"),
    (lambda: mg.manual_seed(0), AttributeError, "nn.manual_seed(seed) is for layers"),
    (lambda: mg.comp_graph("gpu"), mg.DeviceError, 'an NVIDIA GPU is "cuda"'),
    (lambda: mg.comp_graph("GPU:0"), mg.DeviceError, 'an NVIDIA GPU is "cuda"'),
    (lambda: mg.comp_graph("mps"), mg.DeviceError, "Apple's GPUs are not supported"),
    (lambda: mg.comp_graph("cuda:x"), mg.DeviceError, 'use "cpu", "cuda", "cuda:1"'),
]


@pytest.mark.parametrize(("habit", "error", "text"), HABITS)
def test_a_habit_is_answered_with_what_serves_here(habit, error, text):
    with pytest.raises(error, match=re.escape(text)) as raised:
        habit()
    assert "\n" not in str(raised.value)


def test_a_wrong_name_is_an_attribute_error_with_the_nearest_one():
    for owner, name, near in ((NET, "parametres", "parameters"), (ADAM, "minimise", "minimize")):
        assert not hasattr(owner, name)
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'") as raised:
            getattr(owner, name)
        assert (raised.value.obj, raised.value.name) == (owner, name)
        assert hasattr(owner, near)


def test_a_network_called_with_an_array_warns_of_it_once_for_a_line(monkeypatch):
    monkeypatch.setattr("minigraph.errors._warned", set())
    with pytest.warns(mg.MinigraphWarning, match="Sequential was called with arrays only") as all_:
        for _ in range(2):
            y = NET(np.ones((2, 4), "float32"))
    assert len(all_) == 1
    assert isinstance(y, type(X + 1))


def test_arrays_beside_expressions_or_inside_a_module_or_of_integers_are_fine():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x, y):
            return x + y + self.fc(np.ones((2, 4), "float32"))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Net()(X, np.ones((2, 4), "float32"))
        nn.Embedding(5, 3)(np.arange(4))
        ops.relu(np.ones(3))

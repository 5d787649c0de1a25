"""A state that is saved while another thread trains is that between two steps."""

import contextlib
import threading

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, optim

COUNT = 12  # of parameters


class Counting(nn.Module):
    """A module whose parameters all have the number of steps."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(40, 40, bias=False) for _ in range(COUNT)])
        for part in self.parts:
            part.weight.assign(np.zeros((40, 40)))

    def parameters_by_name(self):
        return {str(i): part.weight for i, part in enumerate(self.parts)}


@contextlib.contextmanager
def training(step):
    """Let another thread do steps."""
    end = threading.Event()

    def work():
        while not end.is_set():
            step()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def numbers(state):
    """The different numbers in a state."""
    return {float(x) for value in state.values() for x in np.unique(value)}


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_state_is_of_one_time(device, path):
    net = Counting()
    named = net.parameters_by_name()
    average = optim.EMA(named.values(), decay=0.0)
    updates = {p: p + 1 for p in named.values()}
    updates |= average.updates(updates)
    step = mg.comp_graph(device).compile([], [], updates)
    with training(step):
        for _ in range(200):
            assert len(numbers(net.state_dict())) == 1
            assert len(numbers(average.state_dict())) == 1
        mg.save(path, named)
        assert len(numbers(mg.load(path))) == 1
        for _ in range(50):
            net.load_state_dict(net.state_dict())
            assert len(numbers(net.state_dict())) == 1


def test_the_state_of_an_optimizer_is_of_one_time():
    net = Counting()
    sgd = optim.SGD(net.parameters(), lr=0.0, momentum=1.0)
    loss = sum(part.weight.sum() for part in net.parts)
    step = mg.comp_graph("cpu").compile([], loss, sgd.minimize(loss))
    with training(step):
        for _ in range(200):
            momentum = {k: v for k, v in sgd.state_dict().items() if v.ndim == 2}
            assert len(momentum) == COUNT
            assert len(numbers(momentum)) == 1

"""Two layers and a loss, trained here and in torch from the same weights."""

import numpy as np

import minigraph as mg
from minigraph import ops, optim

_rng = np.random.default_rng(0)
BATCHES = _rng.standard_normal((10, 8, 6))
START = {
    "first": _rng.standard_normal((6, 5)) / 2,
    "shift": _rng.standard_normal(5) / 2,
    "second": _rng.standard_normal((5, 3)) / 2,
}


def grouped(parameters, groups):
    """Return an optimizer's argument: parameters, or a group of each where `groups` has options."""
    if not groups:
        return list(parameters)
    return [{"params": [p], **group} for p, group in zip(parameters, groups, strict=True)]


class Trained:
    """Parameters, an optimizer and the compiled step.

    groups  options of a group of each parameter; () for one group
    """

    def __init__(self, kind, arguments, dtype="float32", groups=(), **minimize):
        self.parameters = {
            name: mg.Parameter(value.astype(dtype), name) for name, value in START.items()
        }
        self.x = mg.input("x", BATCHES.shape[1:], dtype)
        parameters = grouped(self.parameters.values(), groups)
        self.optimizer = getattr(optim, kind)(parameters, **arguments)
        self.step = self.compiled(self.loss(self.x), **minimize)

    def loss(self, x):
        first, shift, second = self.parameters.values()
        return ops.square(ops.tanh(x @ first + shift) @ second - 0.3).mean()

    def compiled(self, loss, **minimize):
        cg = mg.comp_graph("reference")
        return cg.compile([self.x], loss, updates=self.optimizer.minimize(loss, **minimize))

    def values(self):
        return {name: p.numpy() for name, p in self.parameters.items()}


class TorchTrained:
    """The same in torch; `clip` is called with the parameters before each step."""

    def __init__(self, torch, kind, arguments, dtype="float32", groups=(), clip=None):
        self.torch, self.clip = torch, clip
        self.dtype = getattr(torch, dtype)
        self.parameters = {
            name: torch.nn.Parameter(torch.tensor(value, dtype=self.dtype))
            for name, value in START.items()
        }
        parameters = grouped(self.parameters.values(), groups)
        self.optimizer = getattr(torch.optim, kind)(parameters, **arguments)

    def step(self, x):
        self.optimizer.zero_grad()
        first, shift, second = self.parameters.values()
        x = self.torch.tensor(x, dtype=self.dtype)
        loss = ((self.torch.tanh(x @ first + shift) @ second - 0.3) ** 2).mean()
        loss.backward()
        if self.clip:
            self.clip([*self.parameters.values()])
        self.optimizer.step()
        return loss.detach().numpy()

    def values(self):
        return {name: p.detach().numpy() for name, p in self.parameters.items()}


def assert_close(ours, theirs, tolerance):
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype
        assert np.abs(ours[name] - value).max() <= tolerance * np.abs(value).max(), name


def assert_same_steps(ours, theirs, dtype="float64", tolerance=1e-13):
    for batch in BATCHES.astype(dtype):
        np.testing.assert_allclose(ours.step(batch), theirs.step(batch), rtol=10 * tolerance)
        assert_close(ours.values(), theirs.values(), tolerance)

"""A model that `minigraph.torch.training_step` trains beside a copy that PyTorch's loop trains."""

import copy
import functools

import torch
from torch import nn, optim
from torch.nn import functional

import minigraph.torch as mgt

QUICK = {"graph_opt_level": 1, "autotune": "off"}


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 5)

    def forward(self, images):
        return self.fc(torch.relu(self.norm(self.conv(images))).mean((2, 3)))


def images(n=4, dtype=torch.float64):
    return torch.randn(n, 3, 6, 6).to(dtype), torch.randint(0, 5, (n,))


def eager(model, optimizer, batch, loss=functional.cross_entropy):
    """Return the loss of a step of PyTorch's own loop."""
    optimizer.zero_grad()
    value = loss(model(*batch[:-1]), batch[-1])
    value.backward()
    optimizer.step()
    return value.detach()


def tensors(state):
    """Return the tensors and numbers of a state dict by their paths."""
    if isinstance(state, dict):
        return {
            f"{key}.{path}": x for key, part in state.items() for path, x in tensors(part).items()
        }
    if isinstance(state, list | tuple):
        return tensors(dict(enumerate(state)))
    return {"": state}


def same(ours, theirs, tolerance=1e-9):
    """Compare models or optimizers by all that their state dicts hold."""
    ours, theirs = tensors(ours.state_dict()), tensors(theirs.state_dict())
    assert ours.keys() == theirs.keys()
    for name, x in theirs.items():
        if isinstance(x, torch.Tensor):
            assert x.dtype == ours[name].dtype, name
            torch.testing.assert_close(ours[name], x, rtol=tolerance, atol=tolerance, msg=name)
        else:
            assert ours[name] == x, name


class Pair:
    """A model of a dtype and its copy, each with an optimizer.

    optimizer  makes one of parameters
    batch      a function that makes batches; None: of images
    options    of `training_step`
    """

    def __init__(
        self,
        optimizer,
        model=None,
        batch=None,
        loss=functional.cross_entropy,
        dtype=torch.float64,
        tolerance=1e-9,
        **options,
    ):
        self.tolerance = tolerance
        self.theirs = (model or Images()).to(dtype)
        self.ours = copy.deepcopy(self.theirs)
        self.both = self.theirs, self.ours
        self.optimizers = [optimizer(m.parameters()) for m in self.both]
        self.batch, self.loss = batch or functools.partial(images, dtype=dtype), loss
        options = {"options": QUICK, **options}
        self.step = mgt.training_step(self.ours, loss, self.optimizers[1], self.batch(), **options)

    def eager(self, which, batch):
        """Take PyTorch's step: 0 with its copy, 1 with ours."""
        return eager(self.both[which], self.optimizers[which], batch, self.loss)

    def close(self, ours, theirs):
        torch.testing.assert_close(ours, theirs, rtol=self.tolerance, atol=self.tolerance)

    def train(self, steps=1, batch=None):
        """Train both with the same batches and compare the losses; return the last one."""
        for _ in range(steps):
            xs = batch or self.batch()
            loss = self.step(*xs)
            self.close(loss, self.eager(0, xs))
        return loss

    def same(self):
        same(self.ours, self.theirs, self.tolerance)
        same(*reversed(self.optimizers), self.tolerance)


def assert_learns(model, batch, loss, steps=3, **named):
    """Assert that a model learns what it learns in PyTorch, in some steps of batches."""
    pair = Pair(sgd, model, batch, loss, **named)
    pair.train(steps)
    pair.same()


def groups(first, *others):
    """Return parameters as two groups of different options."""
    return [{"params": [first], "lr": 0.02}, {"params": others, "weight_decay": 0.01}]


sgd = functools.partial(optim.SGD, lr=0.1)
adam = functools.partial(optim.Adam, lr=0.01)
OPTIMIZERS = {
    "sgd": sgd,
    "momentum": functools.partial(sgd, momentum=0.9, weight_decay=0.01),
    "dampening": functools.partial(sgd, momentum=0.9, dampening=0.3),
    "nesterov": functools.partial(sgd, momentum=0.9, nesterov=True),
    "adam": functools.partial(adam, betas=(0.8, 0.95), weight_decay=0.01),
    "amsgrad": functools.partial(adam, amsgrad=True, maximize=True),
    "adamw": functools.partial(optim.AdamW, lr=0.01, weight_decay=0.1, foreach=True),
    "decoupled": functools.partial(optim.Adam, decoupled_weight_decay=True, weight_decay=0.1),
    "fused": functools.partial(optim.AdamW, lr=0.01, fused=True),
    "tensor": lambda parameters: optim.Adam(parameters, lr=torch.tensor(0.01, dtype=torch.float64)),
    "groups": lambda parameters: optim.AdamW(groups(*parameters)),
    "rmsprop": functools.partial(optim.RMSprop, lr=0.01),
    "centered": functools.partial(
        optim.RMSprop, lr=0.01, momentum=0.5, centered=True, weight_decay=0.1
    ),
    "adagrad": functools.partial(
        optim.Adagrad, lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.1
    ),
    "adamax": functools.partial(optim.Adamax, lr=0.01),  # torch's own step
}

"""Optimizers: from a loss to the updates that a compiled step applies, as in `torch.optim`."""

from minigraph import torch_hints
from minigraph.optim import schedules
from minigraph.optim.accumulation import Accumulation
from minigraph.optim.algorithms import SGD, Adagrad, Adam, AdamW, Lion, RMSprop
from minigraph.optim.average import EMA
from minigraph.optim.optimizer import Optimizer

__all__ = sorted(["schedules", *[n for n, value in globals().items() if isinstance(value, type)]])
torch_hints.install(__name__, "optim")

"""Optimizers: from a loss to the updates that a compiled step applies, as in `torch.optim`."""

from minigraph import errors
from minigraph.optim import schedules
from minigraph.optim.accumulation import Accumulation
from minigraph.optim.algorithms import SGD, Adagrad, Adam, AdamW, Lion, RMSprop
from minigraph.optim.average import EMA
from minigraph.optim.optimizer import Optimizer

__all__ = sorted(["schedules", *[n for n, value in globals().items() if isinstance(value, type)]])
errors.install_hints(__name__, "optim")

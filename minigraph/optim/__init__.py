"""Optimizers: from a loss to the updates that a compiled step applies, as in `torch.optim`."""

from typing import TYPE_CHECKING

from minigraph import torch_hints
from minigraph.optim import schedules
from minigraph.optim.accumulation import Accumulation
from minigraph.optim.algorithms import SGD, Adagrad, Adam, AdamW, Lion, RMSprop
from minigraph.optim.average import EMA
from minigraph.optim.optimizer import Optimizer

__all__ = sorted(["schedules", *[n for n, value in globals().items() if isinstance(value, type)]])


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # with it, mypy would accept every name
    __getattr__ = torch_hints.of_module(__name__, "optim")

"""Stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minigraph.arguments import checked
from minigraph.errors import GraphError
from minigraph.graph import Node
from minigraph.ops import where
from minigraph.optim.optimizer import Optimizer, Options, Parameters, Updates, in_dtypes


@checked
@dataclass(frozen=True)
class SGDOptions(Options):
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool

    signed = frozenset({"dampening"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not (self.momentum and not self.dampening):
            raise GraphError("nesterov takes a momentum above 0 and a dampening of 0")


class SGD(Optimizer[SGDOptions]):
    """Stochastic gradient descent with momentum (Sutskever et al., 2013), as in `torch.optim`.

    >>> w = mg.Parameter([1.0, -2.0])
    >>> sgd = optim.SGD([w], lr=0.25, momentum=0.9)
    >>> descend = cg.compile([], [], sgd.minimize((w * w).sum()))
    >>> _ = descend()
    >>> w.numpy()
    array([ 0.5, -1. ])
    """

    @checked
    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(parameters, lr, SGDOptions(momentum, dampening, weight_decay, nesterov))
        self._buffers = self._make_each("momentum", where=lambda o: bool(o.momentum))
        self._damped = any(g.options.momentum and g.options.dampening for g in self.groups)
        if self._damped:
            self._step = self._make("step", np.int64(0))

    def _begin(self) -> Updates:
        return {self._step: self._step + 1} if self._damped else {}

    def _descend(self, lr: Node, options: SGDOptions, grads: Updates, updates: Updates) -> None:
        damped = bool(options.momentum and options.dampening)
        # As in torch, the first gradient counts whole.
        share = where(self._step > 0, 1 - options.dampening, 1.0) if damped else 1.0
        numbers = in_dtypes(grads, -lr, options.weight_decay, options.momentum, share)
        for p, g in grads.items():
            descent, decay, momentum, fresh = numbers[p.dtype]
            if options.weight_decay:
                g = p * decay + g
            if options.momentum:
                buffer = self._buffers[p]
                updates[buffer] = buffer * momentum + (g * fresh if damped else g)
                g = updates[buffer] * momentum + g if options.nesterov else updates[buffer]
            updates[p] = g * descent + p

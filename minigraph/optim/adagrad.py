"""Adagrad."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minigraph.arguments import checked
from minigraph.graph import Node
from minigraph.ops import sqrt
from minigraph.optim.optimizer import Optimizer, Options, Parameters, Updates, in_dtypes, within


@checked
@dataclass(frozen=True)
class AdagradOptions(Options):
    lr_decay: float
    weight_decay: float
    eps: float


class Adagrad(Optimizer[AdagradOptions]):
    """Adagrad (Duchi, Hazan and Singer, 2011), as in `torch.optim`.

    >>> w = mg.Parameter([1.0, -2.0])
    >>> descend = cg.compile([], [], optim.Adagrad([w], lr=0.1).minimize((w * w).sum()))
    >>> _ = descend()
    >>> w.numpy()
    array([ 0.9, -1.9])
    """

    @checked
    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        super().__init__(parameters, lr, AdagradOptions(lr_decay, weight_decay, eps))
        start = within("initial_accumulator_value", initial_accumulator_value)
        self._step = self._make("step", np.int64(0))
        self._sums = self._make_each("sum", start)

    def _begin(self) -> Updates:
        return {self._step: self._step + 1}

    def _descend(self, lr: Node, options: AdagradOptions, grads: Updates, updates: Updates) -> None:
        if options.lr_decay:
            lr = lr / (1 + self._step.astype("float64") * options.lr_decay)
        numbers = in_dtypes(grads, -lr, options.weight_decay, options.eps)
        for p, g in grads.items():
            descent, decay, eps = numbers[p.dtype]
            if options.weight_decay:
                g = p * decay + g
            total = self._sums[p] + g * g
            updates[self._sums[p]] = total
            updates[p] = g / (sqrt(total) + eps) * descent + p

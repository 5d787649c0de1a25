"""Adagrad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigraph.arguments import checked
from minigraph.graph import Node, Parameter
from minigraph.ops import sqrt
from minigraph.optim.optimizer import Optimizer, Options, Parameters, Updates, within


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
        self._count_steps()
        self._sums = self._make_each("sum", start)

    def _numbers(
        self, lr: Node, options: AdagradOptions, steps: Node | None
    ) -> tuple[Node | float, ...]:
        assert steps is not None
        if options.lr_decay:
            lr = lr / (1 + steps.astype("float64") * options.lr_decay)
        return -lr, options.weight_decay, options.eps

    def _new(
        self,
        p: Parameter,
        value: Node,
        g: Node,
        numbers: Sequence[Node],
        options: AdagradOptions,
        updates: Updates,
    ) -> Node:
        descent, decay, eps = numbers
        if options.weight_decay:
            g = value * decay + g
        total = updates[self._sums[p]] = self._sums[p] + g * g
        return g / (sqrt(total) + eps) * descent + value

"""Lion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigraph.arguments import checked
from minigraph.graph import Node, Parameter
from minigraph.ops import sign
from minigraph.optim.optimizer import Betas, Optimizer, Options, Parameters, Updates


@checked
@dataclass(frozen=True)
class LionOptions(Options):
    betas: Betas
    weight_decay: float


class Lion(Optimizer[LionOptions]):
    """Lion (X. Chen et al., 2023, Symbolic Discovery of Optimization Algorithms).

    Each element of a parameter moves by the learning rate; the weight decay is AdamW's.

    >>> w = mg.Parameter([1.0, -2.0])
    >>> descend = cg.compile([], [], optim.Lion([w], lr=0.1).minimize((w * w).sum()))
    >>> _ = descend()
    >>> w.numpy()
    array([ 0.9, -1.9])
    """

    @checked
    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-4,
        betas: Betas = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, LionOptions(betas, weight_decay))
        self._means = self._make_each("exp_avg")

    def _numbers(
        self, lr: Node, options: LionOptions, steps: Node | None
    ) -> tuple[Node | float, ...]:
        beta1, beta2 = options.betas
        return -lr, 1 - lr * options.weight_decay, beta1, 1 - beta1, beta2, 1 - beta2

    def _new(
        self,
        p: Parameter,
        value: Node,
        g: Node,
        numbers: Sequence[Node],
        options: LionOptions,
        updates: Updates,
    ) -> Node:
        descent, decay, keep1, new1, keep2, new2 = numbers
        mean = self._means[p]
        updates[mean] = mean * keep2 + g * new2
        start = value * decay if options.weight_decay else value
        return sign(mean * keep1 + g * new1) * descent + start

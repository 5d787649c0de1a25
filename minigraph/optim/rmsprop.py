"""RMSprop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigraph.arguments import checked
from minigraph.graph import Node, Parameter
from minigraph.ops import sqrt
from minigraph.optim.optimizer import Optimizer, Options, Parameters, Updates


@checked
@dataclass(frozen=True)
class RMSpropOptions(Options):
    alpha: float
    eps: float
    weight_decay: float
    momentum: float
    centered: bool


class RMSprop(Optimizer[RMSpropOptions]):
    """RMSprop (Tieleman and Hinton, 2012; centred: Graves, 2013), as in `torch.optim`.

    >>> w = mg.Parameter([1.0, -2.0])
    >>> descend = cg.compile([], [], optim.RMSprop([w], lr=0.01).minimize((w * w).sum()))
    >>> _ = descend()
    >>> w.numpy()
    array([ 0.9, -1.9])
    """

    @checked
    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(
            parameters, lr, RMSpropOptions(alpha, eps, weight_decay, momentum, centered)
        )
        self._squares = self._make_each("square_avg")
        self._means = self._make_each("grad_avg", where=lambda o: o.centered)
        self._buffers = self._make_each("momentum", where=lambda o: bool(o.momentum))

    def _numbers(
        self, lr: Node, options: RMSpropOptions, steps: Node | None
    ) -> tuple[Node | float, ...]:
        keep, decay = options.alpha, options.weight_decay
        return -lr, keep, 1 - keep, options.eps, decay, options.momentum

    def _new(
        self,
        p: Parameter,
        value: Node,
        g: Node,
        numbers: Sequence[Node],
        options: RMSpropOptions,
        updates: Updates,
    ) -> Node:
        descent, keep, new, eps, decay, momentum = numbers
        if options.weight_decay:
            g = value * decay + g
        square = updates[self._squares[p]] = self._squares[p] * keep + g * g * new
        if options.centered:
            mean = updates[self._means[p]] = self._means[p] * keep + g * new
            square = square - mean * mean
        g = g / (sqrt(square) + eps)
        if options.momentum:
            g = updates[self._buffers[p]] = self._buffers[p] * momentum + g
        return g * descent + value

"""RMSprop."""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.arguments import checked
from minigraph.graph import Node
from minigraph.ops import sqrt
from minigraph.optim.optimizer import Optimizer, Options, Parameters, Updates, in_dtypes


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

    def _descend(self, lr: Node, options: RMSpropOptions, grads: Updates, updates: Updates) -> None:
        numbers = in_dtypes(
            grads,
            -lr,
            options.alpha,
            1 - options.alpha,
            options.eps,
            options.weight_decay,
            options.momentum,
        )
        for p, g in grads.items():
            descent, keep, new, eps, decay, momentum = numbers[p.dtype]
            if options.weight_decay:
                g = p * decay + g
            square = self._squares[p] * keep + g * g * new
            updates[self._squares[p]] = square
            if options.centered:
                mean = self._means[p] * keep + g * new
                updates[self._means[p]] = mean
                square = square - mean * mean
            g = g / (sqrt(square) + eps)
            if options.momentum:
                g = self._buffers[p] * momentum + g
                updates[self._buffers[p]] = g
            updates[p] = g * descent + p

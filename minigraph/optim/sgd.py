"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigraph.arguments import checked
from minigraph.errors import GraphError
from minigraph.graph import Node, Parameter
from minigraph.ops import where
from minigraph.optim.optimizer import Optimizer, Options, Parameters, Updates


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
        self._count_steps(where=lambda o: bool(o.momentum and o.dampening))

    def _numbers(
        self, lr: Node, options: SGDOptions, steps: Node | None
    ) -> tuple[Node | float, ...]:
        # As in torch, the first gradient of a parameter counts whole.
        fresh = 1.0 if steps is None else where(steps > 0, 1 - options.dampening, 1.0)
        return -lr, options.weight_decay, options.momentum, fresh

    def _new(
        self,
        p: Parameter,
        value: Node,
        g: Node,
        numbers: Sequence[Node],
        options: SGDOptions,
        updates: Updates,
    ) -> Node:
        descent, decay, momentum, fresh = numbers
        if options.weight_decay:
            g = value * decay + g
        if options.momentum:
            added = g * fresh if options.dampening else g
            buffer = updates[self._buffers[p]] = self._buffers[p] * momentum + added
            g = buffer * momentum + g if options.nesterov else buffer
        return g * descent + value

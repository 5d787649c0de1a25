"""Adam, and AdamW, whose weight decay leaves the gradient alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigraph.arguments import checked
from minigraph.graph import Node, Parameter
from minigraph.ops import maximum, rsqrt, sqrt
from minigraph.optim.optimizer import Betas, Optimizer, Options, Parameters, Updates


@checked
@dataclass(frozen=True)
class AdamOptions(Options):
    betas: Betas
    eps: float
    weight_decay: float
    amsgrad: bool


class Adam(Optimizer[AdamOptions]):
    """Adam (Kingma and Ba, 2015), as in `torch.optim`: `weight_decay` is added to the gradient.

    amsgrad  divide by the root of the largest second moment so far, so that rates only fall
             (AMSGrad; Reddi et al., 2018).  Groups choose for themselves

    >>> w = mg.Parameter([1.0, -2.0])
    >>> adam = optim.Adam([w], lr=0.1)
    >>> descend = cg.compile([], [], adam.minimize((w * w).sum()))
    >>> _ = descend()
    >>> w.numpy()
    array([ 0.9, -1.9])
    >>> v = mg.Parameter([1.0], "v")
    >>> list(optim.Adam([v], amsgrad=True).state_dict())[2:]
    ['adam.exp_avg.v', 'adam.exp_avg_sq.v', 'adam.max_exp_avg_sq.v']
    """

    decoupled = False  # whether weight decay leaves the gradient alone

    @checked
    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(parameters, lr, AdamOptions(betas, eps, weight_decay, amsgrad))
        self._count_steps()
        self._means = self._make_each("exp_avg")
        self._squares = self._make_each("exp_avg_sq")
        self._largest = self._make_each("max_exp_avg_sq", where=lambda o: o.amsgrad)

    def _numbers(
        self, lr: Node, options: AdamOptions, steps: Node | None
    ) -> tuple[Node | float, ...]:
        assert steps is not None
        beta1, beta2 = options.betas
        times = (steps + 1).astype("float64")
        descent = -lr / (1 - beta1**times)
        scale = rsqrt(1 - beta2**times)
        decay = 1 - lr * options.weight_decay if self.decoupled else options.weight_decay
        return descent, scale, beta1, 1 - beta1, beta2, 1 - beta2, options.eps, decay

    def _new(
        self,
        p: Parameter,
        value: Node,
        g: Node,
        numbers: Sequence[Node],
        options: AdamOptions,
        updates: Updates,
    ) -> Node:
        descent, scale, keep1, new1, keep2, new2, eps, decay = numbers
        start = value
        if options.weight_decay and self.decoupled:
            start = value * decay
        elif options.weight_decay:
            g = value * decay + g
        mean = updates[self._means[p]] = self._means[p] * keep1 + g * new1
        square = updates[self._squares[p]] = self._squares[p] * keep2 + g * g * new2
        if options.amsgrad:
            square = updates[self._largest[p]] = maximum(self._largest[p], square)
        return mean / (sqrt(square) * scale + eps) * descent + start


class AdamW(Adam):
    """Adam with weight decay of its own (Loshchilov and Hutter, 2019), as in `torch.optim`.

    amsgrad  as in `Adam`

    >>> w = mg.Parameter([1.0, -2.0])
    >>> adam = optim.AdamW([w], lr=0.1, weight_decay=0.5)
    >>> descend = cg.compile([], [], adam.minimize((w * w).sum()))
    >>> _ = descend()
    >>> w.numpy()
    array([ 0.85, -1.8 ])
    """

    decoupled = True

    @checked
    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay, amsgrad)

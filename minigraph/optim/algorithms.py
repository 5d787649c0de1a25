"""The optimizers of `torch.optim`, and Lion: for each a rule, and a public class.

A product is the first operand of its sum, as in `g * descent + p`, so that both become one FMA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from minigraph.arguments import NotNegative, checked
from minigraph.errors import GraphError
from minigraph.graph import Array, Node, Spec
from minigraph.ops import maximum, rsqrt, sign, sqrt, where
from minigraph.optim.optimizer import Optimizer
from minigraph.optim.rule import (
    INITIAL_STEP,
    Betas,
    Coefficients,
    Parameters,
    State,
    Update,
    UpdateRule,
    filled,
)

# ---------------------------------------------------------------- SGD


@checked
@dataclass(frozen=True)
class SGDRule(UpdateRule):
    momentum: NotNegative
    dampening: float
    weight_decay: NotNegative
    nesterov: bool

    def __post_init__(self) -> None:
        if self.nesterov and not (self.momentum and not self.dampening):
            raise GraphError("nesterov takes a momentum above 0 and a dampening of 0")

    def init(self, p: Spec) -> dict[str, Array]:
        state = {"momentum": filled(p)} if self.momentum else {}
        return state | ({"step": INITIAL_STEP} if self.momentum and self.dampening else {})

    def coefficients(self, lr: Node, steps: Node | None) -> Coefficients:
        # As in torch, the first gradient of a parameter is not dampened.
        share = 1.0 if steps is None else where(steps > 0, 1 - self.dampening, 1.0)
        return -lr, self.weight_decay, self.momentum, share

    def update(self, p: Node, g: Node, state: State, coefficients: Sequence[Node]) -> Update:
        descent, decay, momentum, share = coefficients
        if self.weight_decay:
            g = p * decay + g
        if not self.momentum:
            return g * descent + p, {}
        buffer = state["momentum"] * momentum + (g * share if self.dampening else g)
        direction = buffer * momentum + g if self.nesterov else buffer
        return direction * descent + p, {"momentum": buffer}


class SGD(Optimizer):
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
        lr: NotNegative = 1e-3,
        momentum: NotNegative = 0.0,
        dampening: float = 0.0,
        weight_decay: NotNegative = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(parameters, lr, SGDRule(momentum, dampening, weight_decay, nesterov))


# ---------------------------------------------------------------- Adam, AdamW


@dataclass(frozen=True)
class AdaptiveMoments(UpdateRule):
    """The arithmetic of Adam and AdamW, which decay the gradient or the parameter."""

    betas: Betas
    eps: NotNegative
    weight_decay: NotNegative
    amsgrad: bool

    decoupled: ClassVar[bool]  # whether weight decay leaves the gradient alone

    def init(self, p: Spec) -> dict[str, Array]:
        state = {"step": INITIAL_STEP, "exp_avg": filled(p), "exp_avg_sq": filled(p)}
        return state | ({"max_exp_avg_sq": filled(p)} if self.amsgrad else {})

    def coefficients(self, lr: Node, steps: Node | None) -> Coefficients:
        assert steps is not None
        beta1, beta2 = self.betas
        t = (steps + 1).astype("float64")
        descent = -lr / (1 - beta1**t)
        scale = rsqrt(1 - beta2**t)
        decay = 1 - lr * self.weight_decay if self.decoupled else self.weight_decay
        return descent, scale, beta1, 1 - beta1, beta2, 1 - beta2, self.eps, decay

    def update(self, p: Node, g: Node, state: State, coefficients: Sequence[Node]) -> Update:
        descent, scale, beta1, share1, beta2, share2, eps, decay = coefficients
        if self.weight_decay and self.decoupled:
            p = p * decay
        elif self.weight_decay:
            g = p * decay + g
        mean = state["exp_avg"] * beta1 + g * share1
        square = state["exp_avg_sq"] * beta2 + g * g * share2
        new = {"exp_avg": mean, "exp_avg_sq": square}
        if self.amsgrad:
            square = new["max_exp_avg_sq"] = maximum(state["max_exp_avg_sq"], square)
        return mean / (sqrt(square) * scale + eps) * descent + p, new


@checked
class AdamRule(AdaptiveMoments):
    decoupled = False


@checked
class AdamWRule(AdaptiveMoments):
    decoupled = True


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), as in `torch.optim`: `weight_decay` is added to the gradient.

    amsgrad  whether to divide by the root of the largest second moment so far, so that rates only
             fall (AMSGrad; Reddi et al., 2018); groups may differ

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

    @checked
    def __init__(
        self,
        parameters: Parameters,
        lr: NotNegative = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: NotNegative = 1e-8,
        weight_decay: NotNegative = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(parameters, lr, AdamRule(betas, eps, weight_decay, amsgrad))


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as in `torch.optim`.

    amsgrad  as in `Adam`

    >>> optim.AdamW([mg.Parameter([1.0])], lr=0.1, betas=(0.9, 0.95))
    AdamW(1 parameter: lr=0.1, betas=(0.9, 0.95), eps=1e-08, weight_decay=0.01, amsgrad=False)
    """

    @checked
    def __init__(
        self,
        parameters: Parameters,
        lr: NotNegative = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: NotNegative = 1e-8,
        weight_decay: NotNegative = 1e-2,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(parameters, lr, AdamWRule(betas, eps, weight_decay, amsgrad))


# ---------------------------------------------------------------- RMSprop


@checked
@dataclass(frozen=True)
class RMSpropRule(UpdateRule):
    alpha: NotNegative
    eps: NotNegative
    weight_decay: NotNegative
    momentum: NotNegative
    centered: bool

    def init(self, p: Spec) -> dict[str, Array]:
        is_used = {"square_avg": True, "grad_avg": self.centered, "momentum": self.momentum}
        return {name: filled(p) for name, used in is_used.items() if used}

    def coefficients(self, lr: Node, steps: Node | None) -> Coefficients:
        return -lr, self.alpha, 1 - self.alpha, self.eps, self.weight_decay, self.momentum

    def update(self, p: Node, g: Node, state: State, coefficients: Sequence[Node]) -> Update:
        descent, alpha, share, eps, decay, momentum = coefficients
        if self.weight_decay:
            g = p * decay + g
        square = state["square_avg"] * alpha + g * g * share
        new = {"square_avg": square}
        if self.centered:
            mean = new["grad_avg"] = state["grad_avg"] * alpha + g * share
            square = square - mean * mean
        g = g / (sqrt(square) + eps)
        if self.momentum:
            g = new["momentum"] = state["momentum"] * momentum + g
        return g * descent + p, new


class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton, 2012; centred: Graves, 2013), as in `torch.optim`.

    >>> optim.RMSprop([mg.Parameter([1.0])], momentum=0.9).param_groups[0]["alpha"]
    0.99
    """

    @checked
    def __init__(
        self,
        parameters: Parameters,
        lr: NotNegative = 1e-2,
        alpha: NotNegative = 0.99,
        eps: NotNegative = 1e-8,
        weight_decay: NotNegative = 0.0,
        momentum: NotNegative = 0.0,
        centered: bool = False,
    ) -> None:
        rule = RMSpropRule(alpha, eps, weight_decay, momentum, centered)
        super().__init__(parameters, lr, rule)


# ---------------------------------------------------------------- Adagrad


@checked
@dataclass(frozen=True)
class AdagradRule(UpdateRule):
    lr_decay: NotNegative
    weight_decay: NotNegative
    initial_accumulator_value: NotNegative
    eps: NotNegative

    def init(self, p: Spec) -> dict[str, Array]:
        return {"step": INITIAL_STEP, "sum": filled(p, self.initial_accumulator_value)}

    def coefficients(self, lr: Node, steps: Node | None) -> Coefficients:
        assert steps is not None
        if self.lr_decay:
            lr = lr / (1 + steps.astype("float64") * self.lr_decay)
        return -lr, self.weight_decay, self.eps

    def update(self, p: Node, g: Node, state: State, coefficients: Sequence[Node]) -> Update:
        descent, decay, eps = coefficients
        if self.weight_decay:
            g = p * decay + g
        total = state["sum"] + g * g
        return g / (sqrt(total) + eps) * descent + p, {"sum": total}


class Adagrad(Optimizer):
    """Adagrad (Duchi, Hazan and Singer, 2011), as in `torch.optim`.

    >>> optim.Adagrad([mg.Parameter([1.0])], lr=0.1).param_groups[0]["eps"]
    1e-10
    """

    @checked
    def __init__(
        self,
        parameters: Parameters,
        lr: NotNegative = 1e-2,
        lr_decay: NotNegative = 0.0,
        weight_decay: NotNegative = 0.0,
        initial_accumulator_value: NotNegative = 0.0,
        eps: NotNegative = 1e-10,
    ) -> None:
        rule = AdagradRule(lr_decay, weight_decay, initial_accumulator_value, eps)
        super().__init__(parameters, lr, rule)


# ---------------------------------------------------------------- Lion


@checked
@dataclass(frozen=True)
class LionRule(UpdateRule):
    betas: Betas
    weight_decay: NotNegative

    def init(self, p: Spec) -> dict[str, Array]:
        return {"exp_avg": filled(p)}

    def coefficients(self, lr: Node, steps: Node | None) -> Coefficients:
        beta1, beta2 = self.betas
        return -lr, 1 - lr * self.weight_decay, beta1, 1 - beta1, beta2, 1 - beta2

    def update(self, p: Node, g: Node, state: State, coefficients: Sequence[Node]) -> Update:
        descent, decay, beta1, share1, beta2, share2 = coefficients
        mean = state["exp_avg"]
        decayed = p * decay if self.weight_decay else p
        direction = sign(mean * beta1 + g * share1)
        return direction * descent + decayed, {"exp_avg": mean * beta2 + g * share2}


class Lion(Optimizer):
    """Lion (X. Chen et al., 2023, Symbolic Discovery of Optimization Algorithms).

    Each element of a parameter moves by the learning rate; the weight decay is AdamW's.

    >>> optim.Lion([mg.Parameter([1.0])], weight_decay=0.1)
    Lion(1 parameter: lr=0.0001, betas=(0.9, 0.99), weight_decay=0.1)
    """

    @checked
    def __init__(
        self,
        parameters: Parameters,
        lr: NotNegative = 1e-4,
        betas: Betas = (0.9, 0.99),
        weight_decay: NotNegative = 0.0,
    ) -> None:
        super().__init__(parameters, lr, LionRule(betas, weight_decay))

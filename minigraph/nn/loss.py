"""Losses as modules, as in `torch.nn` but for the arguments that torch has deprecated.

Weights are state that is not learnt.  What the arguments mean is said by the functions in
`minigraph.ops` that the modules call.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from minigraph import ops
from minigraph.arguments import checked
from minigraph.graph import Node
from minigraph.nn.module import Module, ModuleState
from minigraph.ops.loss import Reducing, Share


def _state(value: Any) -> ModuleState | None:
    return None if value is None else ModuleState(value)


@checked
@dataclass(eq=False, repr=False)
class CrossEntropyLoss(Module):
    """`ops.cross_entropy` of logits (n, classes, ...) and labels (n, ...).

    >>> x, labels = mg.input("x", (2, 2)), np.array([0, 1])
    >>> loss = nn.CrossEntropyLoss(label_smoothing=0.1)(x, labels)
    >>> cg.compile([x], loss)([[2.0, 0.0], [0.0, 1.0]])
    array(0.29509485, dtype=float32)
    """

    weight: Any = None
    _: KW_ONLY
    ignore_index: int | None = None
    reduction: Reducing = "mean"
    label_smoothing: Share = 0.0

    def __post_init__(self) -> None:
        self.weight = _state(self.weight)

    def forward(self, x: Any, labels: Any) -> Node:
        return ops.cross_entropy(
            x,
            labels,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


@checked
@dataclass(eq=False, repr=False)
class NLLLoss(Module):
    """`ops.nll_loss` of logarithms of probabilities (n, classes, ...) and labels (n, ...).

    >>> x = mg.input("x", (1, 2))
    >>> cg.compile([x], nn.NLLLoss()(ops.log_softmax(x), [0]))([[2.0, 0.0]])
    array(0.12692805, dtype=float32)
    """

    weight: Any = None
    _: KW_ONLY
    ignore_index: int | None = None
    reduction: Reducing = "mean"

    def __post_init__(self) -> None:
        self.weight = _state(self.weight)

    def forward(self, x: Any, labels: Any) -> Node:
        return ops.nll_loss(
            x, labels, self.weight, ignore_index=self.ignore_index, reduction=self.reduction
        )


@checked
@dataclass(eq=False, repr=False)
class MSELoss(Module):
    """`ops.mse_loss` of two expressions of one shape.

    >>> x = mg.input("x", (2,))
    >>> cg.compile([x], nn.MSELoss()(x, [0.0, 0.0]))([1.0, 2.0])
    array(2.5)
    """

    _: KW_ONLY
    reduction: Reducing = "mean"

    def forward(self, x: Any, target: Any) -> Node:
        return ops.mse_loss(x, target, reduction=self.reduction)


@checked
@dataclass(eq=False, repr=False)
class L1Loss(Module):
    """`ops.l1_loss` of two expressions of one shape.

    >>> x = mg.input("x", (2,))
    >>> cg.compile([x], nn.L1Loss()(x, [0.0, 0.0]))([1.0, 2.0])
    array(1.5)
    """

    _: KW_ONLY
    reduction: Reducing = "mean"

    def forward(self, x: Any, target: Any) -> Node:
        return ops.l1_loss(x, target, reduction=self.reduction)


@checked
@dataclass(eq=False, repr=False)
class SmoothL1Loss(Module):
    """`ops.smooth_l1_loss` of two expressions of one shape.

    >>> x = mg.input("x", (2,))
    >>> cg.compile([x], nn.SmoothL1Loss()(x, [0.5, 0.0]))([0.0, 3.0])
    array(1.3125)
    """

    _: KW_ONLY
    reduction: Reducing = "mean"
    beta: float = 1.0

    def forward(self, x: Any, target: Any) -> Node:
        return ops.smooth_l1_loss(x, target, reduction=self.reduction, beta=self.beta)


@checked
@dataclass(eq=False, repr=False)
class HuberLoss(Module):
    """`ops.huber_loss` of two expressions of one shape.

    >>> x = mg.input("x", (2,))
    >>> cg.compile([x], nn.HuberLoss(delta=0.5)(x, [0.5, 0.0]))([0.0, 3.0])
    array(0.75)
    """

    reduction: Reducing = "mean"
    delta: float = 1.0

    def forward(self, x: Any, target: Any) -> Node:
        return ops.huber_loss(x, target, self.reduction, self.delta)


@checked
@dataclass(eq=False, repr=False)
class KLDivLoss(Module):
    """`ops.kl_div` of logarithms of probabilities and a target of one shape.

    >>> x = mg.input("x", (1, 2))
    >>> loss = nn.KLDivLoss(reduction="batchmean")(ops.log_softmax(x), [[0.5, 0.5]])
    >>> cg.compile([x], loss)([[2.0, 0.0]])
    array(0.43378089)
    """

    _: KW_ONLY
    reduction: Literal["mean", "sum", "none", "batchmean"] = "mean"
    log_target: bool = False

    def forward(self, x: Any, target: Any) -> Node:
        return ops.kl_div(x, target, reduction=self.reduction, log_target=self.log_target)


@checked
@dataclass(eq=False, repr=False)
class BCELoss(Module):
    """`ops.binary_cross_entropy` of probabilities and a target of one shape.

    >>> x = mg.input("x", (2,))
    >>> cg.compile([x], nn.BCELoss()(x, [1.0, 0.0]))([0.9, 0.2])
    array(0.16425205)
    """

    weight: Any = None
    _: KW_ONLY
    reduction: Reducing = "mean"

    def __post_init__(self) -> None:
        self.weight = _state(self.weight)

    def forward(self, x: Any, target: Any) -> Node:
        return ops.binary_cross_entropy(x, target, self.weight, reduction=self.reduction)


@checked
@dataclass(eq=False, repr=False)
class BCEWithLogitsLoss(Module):
    """`ops.binary_cross_entropy_with_logits` of logits and a target of one shape.

    >>> x = mg.input("x", (2,))
    >>> cg.compile([x], nn.BCEWithLogitsLoss()(x, [1.0, 0.0]))([2.0, -1.0])
    array(0.22009485)
    """

    weight: Any = None
    _: KW_ONLY
    reduction: Reducing = "mean"
    pos_weight: Any = None

    def __post_init__(self) -> None:
        self.weight, self.pos_weight = _state(self.weight), _state(self.pos_weight)

    def forward(self, x: Any, target: Any) -> Node:
        return ops.binary_cross_entropy_with_logits(
            x, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )

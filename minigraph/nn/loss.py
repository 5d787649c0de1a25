"""Losses as modules, as in `torch.nn` but for the arguments that torch has deprecated.

Weights are state that is not learnt.  The functions of `minigraph.ops` say what the arguments mean.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, Literal

from minigraph import ops
from minigraph.arguments import Probability
from minigraph.graph import Node
from minigraph.nn.layer import FunctionLayer, layer_of
from minigraph.nn.module import ModuleState
from minigraph.ops.loss import Reducing


class Loss(FunctionLayer):
    """A function of x and a target."""

    def __post_init__(self) -> None:
        for name in ("weight", "pos_weight"):
            if getattr(self, name, None) is not None:
                setattr(self, name, ModuleState(getattr(self, name)))

    def forward(self, x: Any, target: Any) -> Node:  # type: ignore[override]
        return self.function(x, target, **self._arguments())

    def extra_repr(self) -> str:
        return ""


class ClassLoss(Loss):
    """A function of x and labels, the numbers of classes."""

    def forward(self, x: Any, labels: Any) -> Node:  # type: ignore[override]
        return super().forward(x, labels)


@layer_of(ops.cross_entropy)
class CrossEntropyLoss(ClassLoss):
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
    label_smoothing: Probability = 0.0


@layer_of(ops.nll_loss)
class NLLLoss(ClassLoss):
    """`ops.nll_loss` of logarithms of probabilities (n, classes, ...) and labels (n, ...).

    >>> x = mg.input("x", (1, 2))
    >>> cg.compile([x], nn.NLLLoss()(ops.log_softmax(x), [0]))([[2.0, 0.0]])
    array(0.12692805, dtype=float32)
    """

    weight: Any = None
    _: KW_ONLY
    ignore_index: int | None = None
    reduction: Reducing = "mean"


@layer_of(ops.mse_loss)
class MSELoss(Loss):
    """`ops.mse_loss` of two expressions of one shape.

    >>> x = mg.input("x", (2,))
    >>> cg.compile([x], nn.MSELoss()(x, [0.0, 0.0]))([1.0, 2.0])
    array(2.5)
    """

    _: KW_ONLY
    reduction: Reducing = "mean"


@layer_of(ops.l1_loss)
class L1Loss(Loss):
    """`ops.l1_loss` of two expressions of one shape.

    >>> x = mg.input("x", (2,))
    >>> cg.compile([x], nn.L1Loss()(x, [0.0, 0.0]))([1.0, 2.0])
    array(1.5)
    """

    _: KW_ONLY
    reduction: Reducing = "mean"


@layer_of(ops.smooth_l1_loss)
class SmoothL1Loss(Loss):
    """`ops.smooth_l1_loss` of two expressions of one shape.

    >>> x = mg.input("x", (2,))
    >>> cg.compile([x], nn.SmoothL1Loss()(x, [0.5, 0.0]))([0.0, 3.0])
    array(1.3125)
    """

    _: KW_ONLY
    reduction: Reducing = "mean"
    beta: float = 1.0


@layer_of(ops.huber_loss)
class HuberLoss(Loss):
    """`ops.huber_loss` of two expressions of one shape.

    >>> x = mg.input("x", (2,))
    >>> cg.compile([x], nn.HuberLoss(delta=0.5)(x, [0.5, 0.0]))([0.0, 3.0])
    array(0.75)
    """

    reduction: Reducing = "mean"
    delta: float = 1.0


@layer_of(ops.kl_div)
class KLDivLoss(Loss):
    """`ops.kl_div` of logarithms of probabilities and a target of one shape.

    >>> x = mg.input("x", (1, 2))
    >>> loss = nn.KLDivLoss(reduction="batchmean")(ops.log_softmax(x), [[0.5, 0.5]])
    >>> cg.compile([x], loss)([[2.0, 0.0]])
    array(0.43378089)
    """

    _: KW_ONLY
    reduction: Literal["mean", "sum", "none", "batchmean"] = "mean"
    log_target: bool = False


@layer_of(ops.binary_cross_entropy)
class BCELoss(Loss):
    """`ops.binary_cross_entropy` of probabilities and a target of one shape.

    >>> x = mg.input("x", (2,))
    >>> cg.compile([x], nn.BCELoss()(x, [1.0, 0.0]))([0.9, 0.2])
    array(0.16425205)
    """

    weight: Any = None
    _: KW_ONLY
    reduction: Reducing = "mean"


@layer_of(ops.binary_cross_entropy_with_logits)
class BCEWithLogitsLoss(Loss):
    """`ops.binary_cross_entropy_with_logits` of logits and a target of one shape.

    >>> x = mg.input("x", (2,))
    >>> cg.compile([x], nn.BCEWithLogitsLoss()(x, [1.0, 0.0]))([2.0, -1.0])
    array(0.22009485)
    """

    weight: Any = None
    _: KW_ONLY
    reduction: Reducing = "mean"
    pos_weight: Any = None

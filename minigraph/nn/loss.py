"""Losses as modules, as in `torch.nn` except for the arguments that torch has deprecated.

Weights are state that is not trained.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, Literal

from minigraph import ops
from minigraph.arguments import NotNegative, Probability
from minigraph.graph import Node
from minigraph.nn.layer import FunctionLayer, layer_of
from minigraph.nn.module import ModuleState
from minigraph.ops.loss import Reducing


@layer_of()
class Loss(FunctionLayer):
    """A function of x and a target."""

    operands = 2
    _: KW_ONLY
    reduction: Reducing = "mean"

    def __post_init__(self) -> None:
        for name in ("weight", "pos_weight"):
            if getattr(self, name, None) is not None:
                setattr(self, name, ModuleState(getattr(self, name)))

    def forward(self, x: Any, target: Any) -> Node:  # type: ignore[override]
        return self.function(x, target, **self._arguments())

    def extra_repr(self) -> str:
        return ""


@layer_of()
class ClassLoss(Loss):
    """A function of x and labels, the indices of classes."""

    weight: Any = None
    _: KW_ONLY
    ignore_index: int | None = None

    def forward(self, x: Any, labels: Any) -> Node:  # type: ignore[override]
        return super().forward(x, labels)


@layer_of(ops.cross_entropy)
class CrossEntropyLoss(ClassLoss):
    _: KW_ONLY
    label_smoothing: Probability = 0.0


@layer_of(ops.nll_loss)
class NLLLoss(ClassLoss): ...


@layer_of(ops.mse_loss)
class MSELoss(Loss): ...


@layer_of(ops.l1_loss)
class L1Loss(Loss): ...


@layer_of(ops.smooth_l1_loss)
class SmoothL1Loss(Loss):
    _: KW_ONLY
    beta: NotNegative = 1.0


@layer_of(ops.huber_loss)
class HuberLoss(Loss):
    reduction: Reducing = "mean"
    delta: float = 1.0


@layer_of(ops.kl_div)
class KLDivLoss(Loss):
    _: KW_ONLY
    reduction: Literal["mean", "sum", "none", "batchmean"] = "mean"  # type: ignore[assignment]
    log_target: bool = False


@layer_of(ops.binary_cross_entropy)
class BCELoss(Loss):
    weight: Any = None


@layer_of(ops.binary_cross_entropy_with_logits)
class BCEWithLogitsLoss(Loss):
    weight: Any = None
    _: KW_ONLY
    pos_weight: Any = None

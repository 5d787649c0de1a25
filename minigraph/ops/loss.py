"""Losses, with the arguments of `torch.nn.functional`; each is a mean.

`CrossEntropy` and its gradient are what the optimizer makes of the many ops of `cross_entropy`:
neither the one-hot labels nor the logarithms of all probabilities are stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import BOOL, Array, Node, Op, Spec, as_node
from minigraph.ops.builder import builder
from minigraph.ops.comparison import where
from minigraph.ops.elementwise import kind, promote
from minigraph.ops.indexing import OneHot
from minigraph.ops.normalization import LogSoftmax, Softmax, log_softmax, softmax
from minigraph.ops.reduction import mean
from minigraph.ops.shape import permute_dims


class CrossEntropy(Op):
    """-log(softmax(logits [..., classes])) at the labels [...], as [..., 1].

    A label out of range is a GraphError.
    """

    def infer(self, logits: Spec, labels: Spec) -> Spec:
        _check_labels(logits, labels)
        return Spec((*labels.shape, 1), logits.dtype)

    def forward(self, logits: Array, labels: Array) -> Array:
        chosen = OneHot(logits.shape[-1], BOOL).forward(labels)
        logs = LogSoftmax(logits.ndim - 1).forward(logits)
        return -logs[chosen].reshape(*labels.shape, 1)

    def grad(self, dy: Node, y: Node, logits: Node, labels: Node) -> tuple[Node, None]:
        return CrossEntropyBackward()(dy, logits, labels), None


class CrossEntropyBackward(Op):
    """The gradient of CrossEntropy for its logits, from dy [..., 1], logits and labels."""

    def infer(self, dy: Spec, logits: Spec, labels: Spec) -> Spec:
        _check_labels(logits, labels)
        if dy != Spec((*labels.shape, 1), logits.dtype):
            raise ShapeError(f"dy is {dy} for labels {labels}")
        return logits

    def forward(self, dy: Array, logits: Array, labels: Array) -> Array:
        chosen = OneHot(logits.shape[-1], BOOL).forward(labels)
        probabilities = Softmax(logits.ndim - 1).forward(logits)
        # Two terms, as in the ops that this stands for: (probability - 1) * inf is no NaN.
        return np.where(chosen, -dy, np.zeros_like(dy, shape=())) + probabilities * dy

    def grad(
        self, ddx: Node, dx: Node, dy: Node, logits: Node, labels: Node
    ) -> tuple[Node, Node, None]:
        probabilities = softmax(logits)
        weighted = probabilities * ddx
        total = weighted.sum(-1, keepdims=True)
        chosen = where(OneHot(logits.shape[-1], BOOL)(labels), ddx, 0)
        ddy = total - chosen.sum(-1, keepdims=True)
        return ddy, dy * (weighted - probabilities * total), None


def _check_labels(logits: Spec, labels: Spec) -> None:
    if OneHot(logits.shape[-1], BOOL).infer(labels).shape != logits.shape:
        raise ShapeError(f"labels of shape {labels.shape} do not fit logits {logits.shape}")


@builder
def cross_entropy(logits: Any, labels: Any) -> Node:
    """Return the mean of -log(softmax(logits)) at the labels.

    logits (n, classes) or (n, classes, ...), labels integers (n,) or (n, ...); a label that is not
    in 0 ... classes - 1 is a GraphError at the call.
    """
    logits, labels = as_node(logits), as_node(labels)
    if kind(labels.dtype) not in "iu":
        raise DTypeError(f"labels are integers, not {labels.dtype.name}")
    if logits.ndim < 2 or labels.shape != (logits.shape[0], *logits.shape[2:]):
        wanted = (*logits.shape[:1], *logits.shape[2:])
        raise ShapeError(f"logits {logits.shape} take labels {wanted}, not {labels.shape}")
    last = permute_dims(logits, (0, *range(2, logits.ndim), 1))
    chosen = OneHot(logits.shape[1], BOOL)(labels)
    # Not a product with one-hot numbers: the log of a class that is ruled out is -inf.
    return mean(-where(chosen, log_softmax(last), 0).sum(-1, keepdims=True))


@builder
def mse_loss(x: Any, target: Any) -> Node:
    """Return the mean of (x - target) ** 2; ShapeError if the shapes differ."""
    x, target = promote(x, target, floating=True)
    if x.shape != target.shape:
        raise ShapeError(f"x has shape {x.shape}, target {target.shape}")
    distance = x - target
    return mean(distance * distance)

"""Losses, with the arguments of `torch.nn.functional`; each is a mean."""

from __future__ import annotations

from typing import Any

from minigraph.dtypes import BOOL
from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import Node, as_node
from minigraph.ops.builder import builder
from minigraph.ops.comparison import where
from minigraph.ops.elementwise import kind, promote
from minigraph.ops.indexing import OneHot
from minigraph.ops.normalization import log_softmax
from minigraph.ops.reduction import mean, sum
from minigraph.ops.shape import permute_dims


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
    return -mean(sum(where(chosen, log_softmax(last), 0), -1))


@builder
def mse_loss(x: Any, target: Any) -> Node:
    """Return the mean of (x - target) ** 2; ShapeError if the shapes differ."""
    x, target = promote(x, target, floating=True)
    if x.shape != target.shape:
        raise ShapeError(f"x has shape {x.shape}, target {target.shape}")
    distance = x - target
    return mean(distance * distance)

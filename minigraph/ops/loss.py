"""Losses, with the arguments of `torch.nn.functional` except those that torch has deprecated.

`reduction` is "mean" or "sum" of the losses of the elements, or "none", which returns them.  Losses
of 16-bit floats are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from minigraph.arguments import NotNegative, Probability
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import (
    BOOL,
    Array,
    DType,
    Expanded,
    IndexRange,
    Node,
    Operand,
    Spec,
    Tensor,
    builder,
)
from minigraph.ops.activation import softplus
from minigraph.ops.arithmetic import Abs
from minigraph.ops.comparison import clip, where
from minigraph.ops.elementwise import FloatTensor, as_operand, kind, promote, widen
from minigraph.ops.exponential import Exp, Log
from minigraph.ops.indexing import OneHot, Sized, TakeAlong, check_range, take
from minigraph.ops.joining import moveaxis
from minigraph.ops.reduction import mean
from minigraph.ops.shape import broadcast_to, expand_dims, squeeze, stop_gradient
from minigraph.ops.softmax import log_softmax, softmax


class CrossEntropy(Expanded):
    """-log(softmax(logits [..., classes])) at the labels [...], as [..., 1].

    The logarithms of all probabilities are not stored.  A label out of range is a GraphError.
    """

    def infer(self, logits: Spec, labels: Spec) -> Spec:
        _check_labels(logits, labels)
        return Spec((*labels.shape, 1), logits.dtype)

    def index_range(self, logits: Sized, labels: Sized) -> IndexRange:
        return IndexRange(1, 0, logits.shape[-1])

    def forward(self, logits: Array, labels: Array) -> Array:
        check_range(labels, self.index_range(logits, labels), "label")  # the error names this op
        return super().forward(logits, labels)

    def grad(self, dy: Node, y: Node, logits: Node, labels: Node) -> tuple[Node, None]:
        return CrossEntropyBackward()(dy, logits, labels), None

    def expand(self, logits: Node, labels: Node) -> tuple[Node]:
        take = TakeAlong(logits.ndim - 1, labels=True)
        return (-take(log_softmax(logits), expand_dims(labels, -1)),)


class CrossEntropyBackward(Expanded):
    """The gradient of CrossEntropy for its logits, from dy [..., 1], logits and labels."""

    def infer(self, dy: Spec, logits: Spec, labels: Spec) -> Spec:
        _check_labels(logits, labels)
        if dy != Spec((*labels.shape, 1), logits.dtype):
            raise ShapeError(f"dy is {dy} for labels {labels}")
        return logits

    def index_range(self, dy: Sized, logits: Sized, labels: Sized) -> IndexRange:
        return IndexRange(2, 0, logits.shape[-1])

    def forward(self, dy: Array, logits: Array, labels: Array) -> Array:
        check_range(labels, self.index_range(dy, logits, labels), "label")
        return super().forward(dy, logits, labels)

    def expand(self, dy: Node, logits: Node, labels: Node) -> tuple[Node]:
        is_label = OneHot(logits.shape[-1], BOOL)(labels)
        # Two terms, which give NaN for an infinite dy where (probability - 1) * dy would not.
        return (where(is_label, -dy, 0) + softmax(logits) * dy,)


def _check_labels(logits: Spec, labels: Spec) -> None:
    if OneHot(logits.shape[-1], BOOL).infer(labels).shape != logits.shape:
        raise ShapeError(f"labels of shape {labels.shape} do not fit logits {logits.shape}")


Reducing = Literal["mean", "sum", "none"]


@builder
def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    weight: FloatTensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: Reducing = "mean",
    label_smoothing: Probability = 0.0,
) -> Node:
    """Return the mean of -log(softmax(logits)) at the labels.

    logits (n, classes) or (n, classes, ...), labels integers (n,) or (n, ...); a label that is not
    in 0 ... classes - 1 is a GraphError at the call.  Labels may also be floats like logits: the
    probability of each class.

    weight           of each class, (classes,), constant; the mean is weighted by that of the labels
    ignore_index     a label that does not count (in torch -100 by default); None: all count
    label_smoothing  share of each label that is spread evenly over all classes

    >>> cg.compile([], ops.cross_entropy([[2.0, 0.0], [0.0, 1.0]], [0, 1]))()
    array(0.22009485)
    """
    probable = kind(labels.dtype) == "f" and labels.shape == logits.shape
    classes, last = _classes_last(logits, None if probable else labels)
    factors = _class_weights(weight, classes)
    if probable:
        if ignore_index is not None:
            raise GraphError("ignore_index is for labels that are integers")
        target = widen(moveaxis(labels, 1, -1))
        shares = target * (1 - label_smoothing) + label_smoothing / classes
        weighted = shares * widen(log_softmax(last))
        losses = -(weighted if factors is None else weighted * factors).sum(-1)
        return _reduce(losses, reduction, logits.dtype)
    logs = log_softmax(last) if label_smoothing else None  # smoothing reads those of all classes

    def at(indices: Node) -> Node:
        if logs is None:
            return CrossEntropy()(last, squeeze(indices, -1))
        return -TakeAlong(last.ndim - 1, labels=True)(logs, indices)

    losses = _at_labels(labels, ignore_index, at, -1)
    if factors is None and ignore_index is None and logs is None:
        return _reduce(losses if reduction == "mean" else losses[..., 0], reduction, logits.dtype)
    weights = _label_weights(labels, factors, ignore_index)
    total = widen(losses)[..., 0] if weights is None else widen(losses)[..., 0] * weights
    if logs is not None:
        smooth = widen(logs) if factors is None else widen(logs) * factors
        spread = -smooth.sum(-1) * (label_smoothing / classes)
        if ignore_index is not None:
            spread = where(labels == ignore_index, 0, spread)
        total = total * (1 - label_smoothing) + spread
    return _reduce(total, reduction, logits.dtype, weights)


@builder
def nll_loss(
    x: Tensor,
    labels: Tensor,
    weight: FloatTensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: Reducing = "mean",
) -> Node:
    """Return the mean of -x at the labels, for logarithms of probabilities x.

    Shapes, errors and arguments are those of `cross_entropy`.

    >>> cg.compile([], ops.nll_loss(ops.log_softmax([[2.0, 0.0]]), [0]))()
    array(0.12692801)
    """
    classes, _ = _classes_last(x, labels)
    take = TakeAlong(1, labels=True)
    losses = _at_labels(labels, ignore_index, lambda indices: -take(x, indices), 1)
    losses = squeeze(widen(losses), 1)
    weights = _label_weights(labels, _class_weights(weight, classes), ignore_index)
    if weights is not None:
        losses = losses * weights
    return _reduce(losses, reduction, x.dtype, weights)


def check_labels(logits: Node, labels: Node) -> None:
    """Raise an error unless labels are integers (n, ...) for logits (n, classes, ...)."""
    if kind(labels.dtype) not in "iu":
        raise DTypeError(f"labels are integers, not {labels.dtype.name}")
    if logits.ndim < 2 or labels.shape != (logits.shape[0], *logits.shape[2:]):
        shape = (*logits.shape[:1], *logits.shape[2:])
        raise ShapeError(f"logits {logits.shape} take labels {shape}, not {labels.shape}")


def _classes_last(logits: Node, labels: Node | None) -> tuple[int, Node]:
    """Return the number of classes, and the logits with the axis of the classes last."""
    if kind(logits.dtype) != "f":
        raise DTypeError(f"logits are floats, not {logits.dtype.name}")
    if labels is not None:
        check_labels(logits, labels)
    if logits.ndim < 2 or not logits.shape[1]:
        raise ShapeError(f"logits are (n, classes, ...), not {logits.shape}")
    return logits.shape[1], moveaxis(logits, 1, -1)


def _at_labels(
    labels: Node, ignored: int | None, losses: Callable[[Node], Node], axis: int
) -> Node:
    """Return the losses of labels, with one more `axis`; 0 for labels that are ignored."""
    indices = expand_dims(labels, axis)
    if ignored is None:
        return losses(indices)
    is_ignored = indices == ignored
    return where(is_ignored, 0, losses(where(is_ignored, 0, indices)))


def _class_weights(weight: Node | None, classes: int) -> Node | None:
    """Return the weights of the classes as floats of at least 32 bits."""
    if weight is None:
        return None
    if weight.shape != (classes,):
        raise ShapeError(f"weight has shape {weight.shape}; {classes} classes take ({classes},)")
    return stop_gradient(widen(weight))


def _label_weights(labels: Node, factors: Node | None, ignored: int | None) -> Node | None:
    """Return the weight of each label; None if all are 1."""
    if ignored is None:
        return None if factors is None else take(factors, labels, 0)
    is_ignored = labels == ignored
    if factors is None:
        return where(is_ignored, 0.0, 1.0).astype("float32")
    return where(is_ignored, 0, take(factors, where(is_ignored, 0, labels), 0))


def _reduce(losses: Node, reduction: str, dtype: DType, weights: Node | None = None) -> Node:
    """Return losses, their sum, or their mean: with weights, the sum over the sum of weights."""
    if reduction == "sum":
        losses = losses.sum()
    elif reduction == "mean":
        losses = mean(losses) if weights is None else losses.sum() / weights.sum()
    return losses.astype(dtype)


@builder
def mse_loss(x: Operand, target: Operand, *, reduction: Reducing = "mean") -> Node:
    """Return the mean of (x - target) ** 2; ShapeError if the shapes differ.

    >>> cg.compile([], ops.mse_loss([1.0, 2.0], [0.0, 0.0]))()
    array(2.5)
    """
    return _of_distance(lambda d: d * d, x, target, reduction)


@builder
def l1_loss(x: Operand, target: Operand, *, reduction: Reducing = "mean") -> Node:
    """Return the mean of abs(x - target); ShapeError if the shapes differ.

    >>> cg.compile([], ops.l1_loss([1.0, 2.0], [0.0, 0.0]))()
    array(1.5)
    """
    return _of_distance(Abs.of, x, target, reduction)


@builder
def smooth_l1_loss(
    x: Operand, target: Operand, *, reduction: Reducing = "mean", beta: NotNegative = 1.0
) -> Node:
    """Return the mean of d * d / (2 * beta) if d < beta, else d - beta / 2; d = abs(x - target).

    ShapeError if the shapes differ (Girshick, 2015).

    >>> cg.compile([], ops.smooth_l1_loss([0.0, 3.0], [0.5, 0.0]))()
    array(1.3125)
    """
    function = (lambda d: _huber(d, beta) / beta) if beta else Abs.of
    return _of_distance(function, x, target, reduction)


@builder
def huber_loss(
    x: Operand, target: Operand, reduction: Reducing = "mean", delta: float = 1.0
) -> Node:
    """Return the mean of d * d / 2 if d < delta, else delta * (d - delta / 2); d = abs(x - target).

    ShapeError if the shapes differ (Huber, 1964).

    >>> cg.compile([], ops.huber_loss([0.0, 3.0], [0.5, 0.0]))()
    array(1.3125)
    """
    if not delta > 0:
        raise GraphError(f"delta is {delta}; it takes a number > 0")
    return _of_distance(lambda d: _huber(d, delta), x, target, reduction)


def _huber(distance: Node, limit: float) -> Node:
    """Return distance**2 / 2 up to `limit`, and its tangent beyond."""
    size = Abs.of(distance)
    bounded = where(size < limit, distance, 0)  # the gradient of the square has no 0 * infinity
    return where(size < limit, bounded * bounded * 0.5, (size - 0.5 * limit) * limit)


@builder
def kl_div(
    x: Operand,
    target: Operand,
    *,
    reduction: Literal["mean", "sum", "none", "batchmean"] = "mean",
    log_target: bool = False,
) -> Node:
    """Return the mean of target * (log(target) - x), for logarithms of probabilities x.

    reduction   also "batchmean": the sum divided by the length of the first axis, which is the
                Kullback-Leibler divergence
    log_target  whether the target holds logarithms, too

    >>> x = ops.log([[0.9, 0.1]])
    >>> cg.compile([], ops.kl_div(x, [[0.5, 0.5]], reduction="batchmean"))()
    array(0.51082562)
    """
    (x, target), dtype = _alike(x, target)
    if log_target:
        losses = Exp.of(target) * (target - x)
    else:
        is_zero = target == 0  # 0 * log(0) and its gradient are 0
        losses = where(is_zero, 0, target * Log.of(where(is_zero, 1, target))) - target * x
    if reduction == "batchmean":
        if not x.ndim:
            raise ShapeError("a scalar has no first axis")
        return (losses.sum() / x.shape[0]).astype(dtype)
    return _reduce(losses, reduction, dtype)


@builder
def binary_cross_entropy(
    x: Operand, target: Operand, weight: Operand | None = None, *, reduction: Reducing = "mean"
) -> Node:
    """Return the mean of -(target * log(x) + (1 - target) * log(1 - x)) of probabilities x.

    As in torch, no logarithm is below -100.  At x = 0 and x = 1 the gradient is 0, which
    `binary_cross_entropy_with_logits` avoids.  ShapeError if the shapes of x and target differ.

    weight  factors of the losses, which broadcast

    >>> cg.compile([], ops.binary_cross_entropy([0.9, 0.2], [1.0, 0.0]))()
    array(0.16425203)
    """
    (x, target), dtype = _alike(x, target)
    losses = -(target * _bounded_log(x) + (1 - target) * _bounded_log(1 - x))
    if weight is not None:
        losses = losses * _broadcasting("weight", weight, x)
    return _reduce(losses, reduction, dtype)


def _bounded_log(p: Node) -> Node:
    """Return the logarithm, at least -100, with a finite derivative at 0."""
    zero = p <= 0
    return where(zero, -100.0, clip(Log()(where(zero, 1.0, p)), -100.0))


@builder
def binary_cross_entropy_with_logits(
    x: Operand,
    target: Operand,
    weight: Operand | None = None,
    *,
    reduction: Reducing = "mean",
    pos_weight: Operand | None = None,
) -> Node:
    """Return the mean of -(target * log(p) + (1 - target) * log(1 - p)), with p = sigmoid(x).

    The result is finite even if p rounds to 0 or 1.  ShapeError if x and target differ in shape.

    weight      factors of the losses, which broadcast
    pos_weight  factors of the first term, which broadcast

    >>> cg.compile([], ops.binary_cross_entropy_with_logits([2.0, -1.0], [1.0, 0.0]))()
    array(0.22009485)
    """
    (x, target), dtype = _alike(x, target)
    smooth = softplus(-x)
    if pos_weight is not None:
        smooth = smooth * (1 + (_broadcasting("pos_weight", pos_weight, x) - 1) * target)
    losses = (1 - target) * x + smooth
    if weight is not None:
        losses = losses * _broadcasting("weight", weight, x)
    return _reduce(losses, reduction, dtype)


def _alike(x: Any, target: Any) -> tuple[tuple[Node, Node], DType]:
    """Return two expressions of one shape, in at least float32, and the dtype of their loss."""
    x, target = promote(x, target, floating=True)
    if x.shape != target.shape:
        raise ShapeError(f"x has shape {x.shape}, target {target.shape}")
    return (widen(x), widen(target)), x.dtype


def _of_distance(function: Callable[[Node], Node], x: Any, target: Any, reduction: str) -> Node:
    """Return a function of the distances, reduced."""
    (x, target), dtype = _alike(x, target)
    return _reduce(function(x - target), reduction, dtype)


def _broadcasting(name: str, value: Any, x: Node) -> Node:
    """Return factors in the dtype of x; ShapeError unless they broadcast to its shape."""
    factors = as_operand(value, x.dtype)
    try:
        return broadcast_to(factors, x.shape)
    except ShapeError:
        raise ShapeError(f"{name} has shape {factors.shape}; x has {x.shape}") from None

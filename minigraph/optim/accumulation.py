"""Gradient accumulation: gradients summed over several calls, for batches that exceed memory."""

from __future__ import annotations

import numpy as np

from minigraph.arguments import checked
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import Expression, Node, Operand, Parameter, as_node, constant
from minigraph.ops import astype, where
from minigraph.optim.optimizer import Updates, gradients
from minigraph.optim.rule import Parameters, accumulator, parameter_list


class Accumulation:
    """Sums of the gradients of several calls.

    Four calls of `add` and one of `apply` are a step on four times the batch, if the loss is a mean
    over equally many examples or tokens in each call, or `add` is given their number as a weight.

    >>> x, w = mg.input("x", (2,)), mg.Parameter(np.zeros(2, "float32"))
    >>> sgd, sums = optim.SGD([w], lr=0.5), optim.Accumulation([w])
    >>> loss = ops.mse_loss(w, x)
    >>> add = cg.compile([x], loss, sums.add(loss))
    >>> apply = cg.compile([], [], {**sgd.minimize(grads=sums.mean), **sums.clear()})
    >>> for batch in ([1.0, 2.0], [3.0, 4.0]):
    ...     _ = add(batch)
    >>> _ = apply()
    >>> w.numpy()
    array([1. , 1.5], dtype=float32)
    """

    @checked
    def __init__(self, parameters: Parameters) -> None:
        self._sums: dict[Parameter, Parameter] = {}
        for p in parameter_list("Accumulation", parameters):
            if p.trainable:
                zeros = np.zeros(p.shape, accumulator(p.dtype))
                self._sums[p] = Parameter(zeros, f"sum.{p.name}", trainable=False)
        self._with_gradient: dict[Parameter, None] = {}  # an ordered set
        self._in_mean: frozenset[Parameter] | None = None  # parameters in the result of `mean`
        self._weight = Parameter(np.float64(0), "sum.weight", trainable=False)

    @checked
    def add(self, loss: Expression, weight: Operand | None = None) -> Updates:
        """Return the updates that add the gradients of a scalar loss.

        weight  of this call in the mean, a scalar; 1 by default.  For a loss that is a mean over
                tokens, pass their number, which differs between calls, such as `(tokens !=
                padding).sum()`.  A call of weight 0 adds nothing, even if its loss is NaN

        GraphError if the loss depends on no parameter, or on one that an earlier `mean` left out;
        ShapeError for a weight that is not a scalar.
        """
        scale = None if weight is None else as_node(weight)
        if scale is not None and scale.ndim:
            raise ShapeError(f"Accumulation.add: weight has shape {scale.shape}; it is a scalar")
        grads = gradients("Accumulation.add", loss, [*self._sums])
        new = next((p for p in grads if p not in (self._in_mean or grads)), None)
        if new is not None:
            raise GraphError(
                f"Accumulation.add: the loss (made {loss.source}) depends on {new.name}, which an "
                "earlier `mean` left out; call `add` with all losses before `mean`"
            )
        self._with_gradient.update(dict.fromkeys(grads))
        updates: Updates = {self._weight: self._weight + (1 if scale is None else scale)}
        for p, g in grads.items():
            total = self._sums[p]
            added = astype(g, total.dtype)
            if scale is not None:
                added = where(scale == 0, 0, added) * astype(scale, total.dtype)
            updates[total] = total + added
        return updates

    @property
    def weight(self) -> float:
        """The weight of the calls since the sums were cleared, together: by default their number.

        >>> optim.Accumulation([mg.Parameter([1.0])]).weight
        0.0
        """
        return float(self._weight.numpy())

    @property
    def mean(self) -> dict[Parameter, Node]:
        """The weighted mean of the gradients of the calls since the sums were cleared.

        Parameters on which no loss depends have none, so an optimizer leaves them alone.
        GraphError before the first `add`.
        """
        if not self._with_gradient:
            raise GraphError("Accumulation.mean: no gradients were added; call add(loss) first")
        self._in_mean = frozenset(self._with_gradient)
        weight = where(self._weight == 0, 1, self._weight)
        return {
            p: astype(self._sums[p] / astype(weight, self._sums[p].dtype), p.dtype)
            for p in self._with_gradient
        }

    def clear(self) -> Updates:
        """Return the updates that set the sums to 0."""
        sums: Updates = {
            total: constant(np.zeros(total.shape, total.dtype)) for total in self._sums.values()
        }
        return {**sums, self._weight: constant(np.float64(0))}

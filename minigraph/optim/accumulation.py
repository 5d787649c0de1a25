"""Gradients that are summed over several calls, where a batch does not fit into memory."""

from __future__ import annotations

import numpy as np

from minigraph.arguments import checked
from minigraph.autodiff import grad
from minigraph.graph import Node, Parameter, constant
from minigraph.ops import astype, maximum
from minigraph.optim.optimizer import Parameters, Updates, listed, wide


class Accumulation:
    """Sums of the gradients of several calls.

    Four calls of `add` and one of `apply` are a step on four times the batch.

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
        for p in listed("Accumulation", parameters):
            if p.trainable:
                zeros = np.zeros(p.shape, wide(p.dtype))
                self._sums[p] = Parameter(zeros, f"sum.{p.name}", trainable=False)
        self._calls = Parameter(np.int64(0), "sum.calls", trainable=False)

    def add(self, loss: Node) -> Updates:
        """Return the updates that add the gradients of a scalar loss."""
        grads = grad(loss, [*self._sums])
        updates: Updates = {
            total: total + astype(g, total.dtype)
            for total, g in zip(self._sums.values(), grads, strict=True)
        }
        return {**updates, self._calls: self._calls + 1}

    @property
    def mean(self) -> dict[Parameter, Node]:
        """The mean gradient of each parameter over the calls since the sums were cleared."""
        calls = maximum(self._calls, 1)
        return {
            p: astype(total / astype(calls, total.dtype), p.dtype)
            for p, total in self._sums.items()
        }

    def clear(self) -> Updates:
        """Return the updates that begin again."""
        sums: Updates = {
            total: constant(np.zeros(total.shape, total.dtype)) for total in self._sums.values()
        }
        return {**sums, self._calls: constant(np.int64(0))}

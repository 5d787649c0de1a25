"""Optimizers: from a loss to the updates that a compiled step applies, as in `torch.optim`.

An optimizer's state is parameters that nothing trains, so a step updates it with everything else.
Numbers that change between steps are computed once a step, in float64 like torch's Python floats.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minigraph.autodiff import grad
from minigraph.errors import DTypeError, GraphError
from minigraph.graph import Array, DType, Graph, Node, Parameter
from minigraph.ops import rsqrt, sqrt, where
from minigraph.ops.elementwise import as_operand, kind
from minigraph.serialization import restore


class Optimizer(ABC):
    """The base of optimizers.

    parameters  those to train, of float dtypes; those that are not `trainable` are left out
    lr          the learning rate.  `optimizer.lr = 3e-4` takes effect at the next call of the
                compiled functions, and compiles nothing

    All graphs share the optimizer's state: a function compiled for one loss goes on from where a
    function for another loss stopped.
    """

    def __init__(self, parameters: Iterable[Parameter], lr: float) -> None:
        self._name = type(self).__name__.lower()
        self._state: dict[str, Parameter] = {}
        self.parameters = _trainable(type(self).__name__, parameters)
        self._lr = self._make("lr", np.float64(_number("lr", lr)))

    @property
    def lr(self) -> float:
        return float(self._lr.numpy())

    @lr.setter
    def lr(self, value: float) -> None:
        self._lr.assign(_number("lr", value))

    def minimize(self, loss: Node) -> dict[Parameter, Node]:
        """Return the updates, of parameters and of the optimizer's state, that lower a scalar loss.

        As in torch, a parameter that the loss does not depend on stays as it is.  GraphError if the
        loss depends on none.
        """
        trained = [p for p in self.parameters if p.trainable]
        grads = dict(zip(trained, grad(loss, trained), strict=True))
        read = set(Graph((), (loss,)).parameters)
        grads = {p: g for p, g in grads.items() if p in read}
        if not grads:
            raise GraphError(
                f"{type(self).__name__}.minimize: the loss (made {loss.source}) depends on no "
                "trainable parameter of this optimizer"
            )
        return self._updates(grads)

    @abstractmethod
    def _updates(self, grads: dict[Parameter, Node]) -> dict[Parameter, Node]:
        """Return the new values of the parameters, which have gradients, and of the state."""

    def state_dict(self) -> dict[str, Array]:
        """Return copies of the state, learning rate and step count included, by name."""
        return {name: p.numpy() for name, p in self._state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what `state_dict()` gave, exactly, for the same parameter names.

        Raises GraphError (ShapeError, DTypeError) with all that does not fit, and sets nothing.
        """
        restore(f"{type(self).__name__}.load_state_dict", self._state, state)

    def _make(self, name: str, value: Any) -> Parameter:
        name = f"{self._name}.{name}"
        self._state[name] = Parameter(value, name, trainable=False)
        return self._state[name]

    def _make_each(self, name: str) -> dict[Parameter, Parameter]:
        """Return zeros for each parameter, named after it (and its place, if the name is taken)."""
        made: dict[Parameter, Parameter] = {}
        for i, p in enumerate(self.parameters):
            taken = f"{self._name}.{name}.{p.name}" in self._state
            made[p] = self._make(f"{name}.{p.name}" + f"#{i}" * taken, np.zeros(p.shape, p.dtype))
        return made


class SGD(Optimizer):
    """Stochastic gradient descent with momentum (Sutskever et al., 2013), as in `torch.optim`."""

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(parameters, lr)
        self.momentum = _number("momentum", momentum)
        self.dampening = _number("dampening", dampening, low=-math.inf)
        self.weight_decay = _number("weight_decay", weight_decay)
        self.nesterov = nesterov
        if nesterov and not (self.momentum and not self.dampening):
            raise GraphError("nesterov takes a momentum above 0 and a dampening of 0")
        self._buffers = self._make_each("momentum") if self.momentum else {}
        self._damped = bool(self.momentum and self.dampening)
        if self._damped:
            self._step = self._make("step", np.int64(0))

    def _updates(self, grads: dict[Parameter, Node]) -> dict[Parameter, Node]:
        share: Node | float = 1.0
        updates: dict[Parameter, Node] = {}
        if self._damped:
            # As in torch, the first gradient counts whole.
            share = where(self._step > 0, 1 - self.dampening, 1.0)
            updates[self._step] = self._step + 1
        numbers = _in_dtypes(grads, -self._lr, self.weight_decay, self.momentum, share)
        for p, g in grads.items():
            descent, decay, momentum, fresh = numbers[p.dtype]
            if self.weight_decay:
                g = p * decay + g
            if self.momentum:
                buffer = self._buffers[p]
                updates[buffer] = buffer * momentum + (g * fresh if self._damped else g)
                g = updates[buffer] * momentum + g if self.nesterov else updates[buffer]
            updates[p] = g * descent + p
        return updates


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), as in `torch.optim`: `weight_decay` is added to the gradient."""

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr)
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise GraphError(f"betas is {betas!r}; it takes a pair of numbers")
        self.betas = _number("betas[0]", betas[0], high=1), _number("betas[1]", betas[1], high=1)
        self.eps = _number("eps", eps)
        self.weight_decay = _number("weight_decay", weight_decay)
        self._step = self._make("step", np.int64(0))
        self._means = self._make_each("exp_avg")
        self._squares = self._make_each("exp_avg_sq")

    def _updates(self, grads: dict[Parameter, Node]) -> dict[Parameter, Node]:
        beta1, beta2 = self.betas
        step = self._step + 1
        times = step.astype("float64")
        descent = -self._lr / (1 - beta1**times)
        scale = rsqrt(1 - beta2**times)
        updates: dict[Parameter, Node] = {self._step: step}
        numbers = _in_dtypes(
            grads, descent, scale, beta1, 1 - beta1, beta2, 1 - beta2, self.eps, self.weight_decay
        )
        for p, g in grads.items():
            descent, scale, keep1, new1, keep2, new2, eps, decay = numbers[p.dtype]
            if self.weight_decay:
                g = p * decay + g
            mean = self._means[p] * keep1 + g * new1
            square = self._squares[p] * keep2 + g * g * new2
            updates[self._means[p]] = mean
            updates[self._squares[p]] = square
            updates[p] = mean / (sqrt(square) * scale + eps) * descent + p
        return updates


def _trainable(what: str, parameters: Iterable[Parameter]) -> list[Parameter]:
    """Return the parameters that are trainable, of which there must be some, each once."""
    if isinstance(parameters, Node) or not isinstance(parameters, Iterable):
        raise GraphError(f"{what}: a list of parameters, not {type(parameters).__name__}")
    given: dict[Parameter, None] = {}
    for p in parameters:
        if not isinstance(p, Parameter):
            raise GraphError(f"{what}: parameters are mg.Parameters, not {type(p).__name__}")
        if p in given:
            raise GraphError(f"{what}: parameter {p.name} is there twice")
        if p.trainable and kind(p.dtype) != "f":
            raise DTypeError(f"{what}: parameter {p.name} is {p.dtype.name}, which has no gradient")
        given[p] = None
    trained = [p for p in given if p.trainable]
    if not trained:
        raise GraphError(f"{what}: none of {len(given)} parameters is trainable")
    return trained


def _number(what: str, value: Any, low: float = 0, high: float = math.inf) -> float:
    """Return `value` as a float; a GraphError that names `what` if it is none in [low, high)."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number < high:
        raise GraphError(f"{what} is {value!r}; it takes a number in [{low:g}, {high:g})")
    return number


def _in_dtypes(parameters: Iterable[Parameter], *numbers: Node | float) -> dict[DType, list[Node]]:
    """Return the numbers in each dtype that the parameters have."""
    dtypes = dict.fromkeys(p.dtype for p in parameters)
    return {dtype: [as_operand(x, dtype) for x in numbers] for dtype in dtypes}

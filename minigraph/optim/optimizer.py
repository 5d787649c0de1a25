"""The base of optimizers: groups of parameters, state, clipped gradients.

An optimizer's state is parameters that are not trainable, so a step updates it like all others.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from minigraph.arguments import NOT_NEGATIVE, Kind, checked, mapping
from minigraph.autodiff import grad
from minigraph.distributed.world import Processes
from minigraph.errors import GraphError, ShapeError, attribute_error, hints
from minigraph.graph import (
    Array,
    Constant,
    Descent,
    Expression,
    Graph,
    Node,
    Parameter,
    as_node,
    here,
    in_place_of,
    namesake,
    values_of,
)
from minigraph.ops import astype, clip, minimum, split, sqrt, square, stack
from minigraph.ops.collective import mean_gradient
from minigraph.ops.elementwise import as_operand
from minigraph.optim.rule import (
    GROUP,
    ParameterGroup,
    UpdateRule,
    accumulator,
    parsed_groups,
)
from minigraph.serialization import restore

Updates = dict[Parameter, Node]

GRADS = Kind("a mapping of parameters to gradients", mapping)


class Optimizer:
    """The base of optimizers.

    parameters  parameters of float dtypes; those that are not `trainable` are skipped.  Or groups
                of them as in torch: `[{"params": net.body.parameters(), "lr": 1e-4}, …]`; the other
                arguments are the defaults of groups
    lr          the learning rate.  `optimizer.lr = 3e-4` takes effect at the next call of the
                compiled functions, without compilation.  It sets the rates of all groups, in their
                initial proportions; schedules set each rate, and so does
                `optimizer.param_groups[1]["lr"] = 3e-4`

    All graphs share the optimizer's state: the function of one loss continues the steps of the
    function of another.  Each parameter counts its own steps: calls of functions that change it.

    The arithmetic and the state of 16-bit parameters are float32: in 16 bits the square of a
    gradient and `eps` are 0, and small steps are lost in an average.

    >>> w, b = mg.Parameter([1.0]), mg.Parameter([0.0])
    >>> groups = [{"params": [w], "weight_decay": 0.1}, {"params": [b]}]
    >>> adam = optim.Adam(groups, lr=0.01)
    >>> adam.lr = 0.001
    """

    def __init__(self, parameters: Iterable[Any], lr: float, rule: UpdateRule) -> None:
        self._prefix = type(self).__name__.lower()
        self._state: dict[str, Parameter] = {}
        self._states: dict[Parameter, dict[str, Parameter]] = {}
        self._ambiguous_name: str | None = None  # that two parameters with a state have
        self._rule = rule  # of groups without their own hyperparameters
        groups = parsed_groups(type(self).__name__, list(parameters), lr, rule)
        self._lr = self._new_state("lr", np.float64(lr))
        self._rates, self._ratios = [self._lr], [1.0]  # ratios: to the first rate
        self._groups: list[ParameterGroup] = []
        for group in groups:
            self._add_group(*group)
        self.parameters = [*self._states]

    def _add_group(self, trained: list[Parameter], rate: float, rule: UpdateRule) -> None:
        i, group_lr = len(self._groups), self._lr
        if i or rate != self.lr:
            group_lr = self._new_state(f"lr#{i}", np.float64(rate))
            self._rates.append(group_lr)
            self._ratios.append(rate / (self.lr or 1))
        self._groups.append(ParameterGroup(trained, group_lr, rule))
        for p in trained:
            self._init_state(p, rule)

    if not TYPE_CHECKING:  # with it, mypy would accept every name

        def __getattr__(self, name: str) -> Any:
            raise attribute_error(type(self).__name__, name, "optimizers", self)

    def __setattr__(self, name: str, value: Any) -> None:
        is_initialised = "parameters" in vars(self)
        if is_initialised and not hasattr(type(self), name):
            self._check_settable(name)
        super().__setattr__(name, value)

    def _check_settable(self, name: str) -> None:
        """Raise AttributeError for an attribute that has no effect when it is set."""
        if name in hints("optimizers"):
            raise attribute_error(type(self).__name__, name, "optimizers", self)
        if any(name in group.rule.hyperparameters for group in self._groups):
            raise AttributeError(
                f"{type(self).__name__}: {name} is part of the updates that minimize has returned; "
                f"make an optimizer with another {name}, and compile its minimize(loss). Only lr "
                "can change between calls"
            )

    def __repr__(self) -> str:
        parts = (
            f"{(n := len(group.parameters))} parameter{'s' * (n != 1)}: lr={group.lr.numpy():g}"
            + "".join(f", {name}={value!r}" for name, value in group.rule.hyperparameters.items())
            for group in self._groups
        )
        return f"{type(self).__name__}({'; '.join(parts)})"

    @property
    def lr(self) -> float:
        return float(self._lr.numpy())

    @lr.setter
    def lr(self, value: float) -> None:
        number = NOT_NEGATIVE.check("lr", value)
        self.rates = [number * ratio for ratio in self._ratios]

    @property
    def rates(self) -> list[float]:
        """The learning rate, and those of the further groups, in order."""
        return [float(p.numpy()) for p in self._rates]

    @rates.setter
    def rates(self, values: Sequence[float]) -> None:
        for p, value in zip(self._rates, values, strict=True):
            p.assign(NOT_NEGATIVE.check("lr", value))

    @property
    def param_groups(self) -> list[ParameterGroup]:
        """The groups as in torch: each has `params`, an `lr` that can be set, and other numbers."""
        return [*self._groups]

    @checked
    def add_param_group(self, group: Annotated[Mapping[str, Any], GROUP]) -> None:
        """Train further parameters, those of a dict such as `{"params": net.head.parameters()}`.

        The dict may have its own lr and hyperparameters.  Functions that were compiled before do
        not train them: compile the new result of `minimize`.
        """
        caller = f"{type(self).__name__}.add_param_group"
        (added,) = parsed_groups(caller, [group], self.lr, self._rule, self.parameters)
        self._add_group(*added)
        self.parameters += added[0]

    @checked
    def minimize(
        self,
        loss: Expression | None = None,
        grads: Annotated[Mapping[Parameter, Node], GRADS] | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        reduce: Processes | None = None,
    ) -> Updates:
        """Return the updates, of parameters and of the optimizer's state, that lower a scalar loss.

        grads       gradients of some parameters or of all, in place of a loss
        clip_norm   scales all gradients so that their norm together is at most this, as
                    `torch.nn.utils.clip_grad_norm_` does
        clip_value  clips each element of a gradient, before that, to [-clip_value, clip_value]
        reduce      `mg.distributed.world()`: average the gradients of all its processes, before
                    clipping.  All parameters start with the values of process 0

        As in torch, a parameter does not change if the loss does not depend on it, or only through
        `stop_gradient` and the like.  GraphError if this holds for all parameters, ShapeError for a
        gradient whose shape is not its parameter's.

        To lower two losses at once, minimize their sum: a dict of the updates of both would keep
        the last update of each parameter.
        """
        grads = self._gradients(loss) if grads is None else self._checked_gradients(grads)
        if reduce is not None:
            grads = {p: mean_gradient(g, reduce, p.name) for p, g in grads.items()}
        grads = clipped("minimize", grads, clip_norm, clip_value)
        updates: Updates = {}
        for group in self._groups:
            if group_grads := {p: grads[p] for p in group.parameters if p in grads}:
                updates |= self._group_updates(group, group_grads)
        descent = Descent(f"{type(self).__name__}.minimize", tuple(grads), here())
        for value in updates.values():
            value.descent = descent
        return updates

    def _group_updates(self, group: ParameterGroup, grads: Updates) -> Updates:
        """Return the new values of a group's parameters, which have gradients, and of their state.

        Counts of steps come first: coefficients depend on them.
        """
        states = [self._states[p] for p in grads]
        counts = [state["step"] for state in states if "step" in state]
        updates: Updates = {count: count + 1 for count in counts}
        # In this order the updates run early; at the end of the step they would keep all gradients
        # alive until then.
        with in_place_of(next(iter(grads)), like=updates[counts[0]] if counts else group.lr):
            numbers = group.rule.coefficients(group.lr, stack(counts) if counts else None)
            dtypes = dict.fromkeys(g.dtype for g in grads.values())
            typed = {d: [_each(as_operand(x, d), len(grads)) for x in numbers] for d in dtypes}
        for i, ((p, g), state) in enumerate(zip(grads.items(), states, strict=True)):
            coefficients = [each[i] if p.ndim else each[i].reshape(()) for each in typed[g.dtype]]
            value, new_state = group.rule.update(astype(p, g.dtype), g, state, coefficients)
            updates |= {state[name]: new for name, new in new_state.items()}
            updates[p] = astype(value, p.dtype)
        return updates

    def _gradients(self, loss: Any) -> Updates:
        if loss is None:
            raise GraphError(f"{type(self).__name__}.minimize takes a loss, or `grads`")
        trained = [p for p in self.parameters if p.trainable]
        return gradients(f"{type(self).__name__}.minimize", loss, trained)

    def _checked_gradients(self, grads: Mapping[Parameter, Any]) -> Updates:
        """Return the user's gradients, in the dtypes of their parameters, or of accumulation."""
        checked_grads: Updates = {}
        trained = {p for p in self.parameters if p.trainable}
        for p, g in grads.items():
            name = f"{type(self).__name__}.minimize: the gradient of {getattr(p, 'name', p)!s:.40}"
            if p not in trained:
                hint = f"; {n}" if isinstance(p, Node) and (n := namesake(p, trained)) else ""
                raise GraphError(f"{name} is for no parameter that this optimizer trains{hint}")
            node = as_node(g)
            if node.shape != p.shape:
                raise ShapeError(f"{name} has shape {node.shape}, not {p.shape}")
            checked_grads[p] = node if node.dtype == p.dtype else astype(node, accumulator(p.dtype))
        return checked_grads

    def state_dict(self) -> dict[str, Array]:
        """Return copies of the state, by name: learning rates, counts of steps, averages, ....

        Averages and sums have the dtype of their parameter, or float32 for 16-bit parameters;
        counts are int64.  All are from the same moment: steps in other threads come before or
        after.  GraphError if two parameters have the same name; those without a name are numbered.
        """
        check_unambiguous(f"{type(self).__name__}.state_dict", self._ambiguous_name)
        return values_of(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a `state_dict()`, exactly, for the same parameter names.

        A misfit is a GraphError (ShapeError, DTypeError), which lists all and sets nothing.
        """
        restore(f"{type(self).__name__}.load_state_dict", self._state, state)

    def _new_state(self, name: str, value: Any) -> Parameter:
        name = f"{self._prefix}.{name}"
        self._state[name] = Parameter(value, name, trainable=False)
        return self._state[name]

    def _init_state(self, p: Parameter, rule: UpdateRule) -> None:
        """Make the state of a parameter, with its name (and a number, if another has that name)."""
        values = rule.init(p.spec)
        unique_name = p.name
        if any(f"{self._prefix}.{name}.{p.name}" in self._state for name in values):
            self._ambiguous_name = user_name(p) or self._ambiguous_name
            unique_name = f"{p.name}#{len(self._states)}"
        self._states[p] = {
            name: self._new_state(f"{name}.{unique_name}", value) for name, value in values.items()
        }


def _each(numbers: Node, n: int) -> list[Node]:
    """Return the n numbers of a vector, each (1,), or a scalar n times."""
    return split(numbers, n) if numbers.ndim else [numbers] * n


def gradients(caller: str, loss: Node, parameters: list[Parameter]) -> Updates:
    """Return the gradients of a loss for the parameters on which it depends.

    Raises a GraphError that begins with `caller` if the loss depends on none.
    """
    grads = dict(zip(parameters, grad(loss, parameters), strict=True))
    if nonzero := {p: g for p, g in grads.items() if not _is_constant_zero(g)}:
        return nonzero
    subject = f"{caller}: the loss (made {loss.source})"
    dependencies = Graph((), (loss,)).parameters
    if set(dependencies).isdisjoint(parameters):
        hint = next(filter(None, (namesake(p, dependencies) for p in parameters)), "")
        text = f"{subject} depends on none of the parameters to train"
        raise GraphError(f"{text}; {hint}" if hint else text)
    raise GraphError(
        f"{subject} has no gradient: it depends on the parameters only through ops that change in "
        "steps, such as argmax and comparisons, or through stop_gradient"
    )


def _is_constant_zero(gradient: Node) -> bool:
    """Return whether a gradient is the zeros that `grad` returns for an independent loss."""
    while gradient.op.is_view and len(gradient.inputs) == 1:
        (gradient,) = gradient.inputs
    return isinstance(gradient.op, Constant) and not gradient.op.value.any()


def user_name(p: Parameter) -> str | None:
    """Return the name of a parameter; None if it has only the default name."""
    return None if p.name == "parameter" else p.name


def check_unambiguous(caller: str, name: str | None) -> None:
    """Raise a GraphError that begins with `caller` if two parameters have the same `name`.

    A program that makes them in another order would give each the other's state.
    """
    if name is not None:
        raise GraphError(
            f"{caller}: two parameters are named {name}, so their states have the same names; "
            "before the optimizer, make one module of both networks, such as "
            'nn.ModuleDict({"a": a, "b": b}), or rename them by Parameter.rename'
        )


def clipped(
    caller: str, grads: Mapping[Parameter, Node], norm: float | None, value: float | None
) -> Updates:
    """Return gradients in their accumulation dtypes, clipped as by `minimize`.

    caller  the beginning of errors
    """
    clipped_grads = {p: astype(g, accumulator(p.dtype)) for p, g in grads.items()}
    if value is not None:
        bound = NOT_NEGATIVE.check(f"{caller}: clip_value", value)
        clipped_grads = {p: clip(g, -bound, bound) for p, g in clipped_grads.items()}
    if norm is not None:
        limit = NOT_NEGATIVE.check(f"{caller}: clip_norm", norm)
        total = functools.reduce(operator.add, (square(g).sum() for g in clipped_grads.values()))
        factor = minimum(limit / (sqrt(total) + 1e-6), 1.0)
        clipped_grads = {p: g * astype(factor, g.dtype) for p, g in clipped_grads.items()}
    return clipped_grads

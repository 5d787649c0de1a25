"""What optimizers have in common: groups of parameters, state, clipped gradients.

An optimizer's state is parameters that nothing trains, so a step updates it with everything else.
Numbers that change between steps are computed in float64, like torch's Python floats: once a step,
for all parameters of a group together.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from minigraph.arguments import NUMBER, Kind, checked, mapping
from minigraph.autodiff import grad
from minigraph.distributed.world import Processes
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import (
    Array,
    Constant,
    Descent,
    DType,
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
from minigraph.ops.elementwise import as_operand, kind
from minigraph.serialization import restore
from minigraph.torch_hints import OF_OPTIMIZERS, missing

Updates = dict[Parameter, Node]


def _several(value: Any) -> list[Any]:
    if hasattr(value, "parameters"):
        raise GraphError(f"{type(value).__name__} is a module; give what its parameters() returns")
    if isinstance(value, Node | Mapping):
        raise TypeError
    return list(value)


Parameters = Annotated[
    Iterable[Parameter] | Iterable[Mapping[str, Any]],
    Kind("a list of parameters, or of dicts with a list of them as `params`", _several),
]


GRADS = Kind("a mapping of parameters to gradients", mapping)


def _pair(value: Any) -> tuple[float, float]:
    first, second = map(NUMBER.parse, value)
    return first, second


Betas = Annotated[tuple[float, float], Kind("a pair of numbers", _pair)]


@dataclass(frozen=True)
class Options:
    """What a group of parameters is trained with, besides the learning rate.

    Numbers are 0 or above, those of a pair below 1 too; only `signed` ones may be negative.
    """

    signed: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, tuple):
                for i, number in enumerate(value):
                    within(f"{name}[{i}]", number, high=1)
            else:
                within(name, value, low=-math.inf if name in self.signed else 0)


OptionsT = TypeVar("OptionsT", bound=Options)


class Group(NamedTuple, Generic[OptionsT]):
    """Parameters that are trained alike, and their learning rate."""

    parameters: Sequence[Parameter]
    lr: Parameter
    options: OptionsT


class Optimizer(ABC, Generic[OptionsT]):
    """The base of optimizers.

    parameters  those to train, of float dtypes; those that are not `trainable` are left out.  Or
                groups of them as in torch: `[{"params": net.body.parameters(), "lr": 1e-4}, …]`;
                what a dict does not say is as the other arguments say
    lr          the learning rate.  `optimizer.lr = 3e-4` takes effect at the next call of the
                compiled functions, and compiles nothing.  The rates of groups that have their own
                change in proportion; schedules set each

    All graphs share the optimizer's state: a function compiled for one loss goes on from where a
    function for another loss stopped.  Each parameter counts its own steps, which are those of the
    functions that change it.

    The arithmetic and the state of 16-bit parameters are float32: in 16 bits the square of a
    gradient and `eps` are 0, and small steps are lost in an average.

    >>> w, b = mg.Parameter([1.0]), mg.Parameter([0.0])
    >>> groups = [{"params": [w], "weight_decay": 0.1}, {"params": [b]}]
    >>> adam = optim.Adam(groups, lr=0.01)
    >>> adam.lr = 0.001
    """

    def __init__(self, parameters: Iterable[Any], lr: float, options: OptionsT) -> None:
        self._name = type(self).__name__.lower()
        self._state: dict[str, Parameter] = {}
        self._alike: str | None = None  # a name that two parameters with a state have
        given = _groups(type(self).__name__, list(parameters), within("lr", lr), options)
        self._lr = self._make("lr", np.float64(lr))
        rates = {self._lr: 1.0}  # as multiples of the first
        self.groups: list[Group[OptionsT]] = []
        for i, (trained, rate, own) in enumerate(given):
            of_group = self._lr if rate == lr else self._make(f"lr#{i}", np.float64(rate))
            rates.setdefault(of_group, rate / (lr or 1))
            self.groups.append(Group(trained, of_group, own))
        self._rates, self.shares = [*rates], [*rates.values()]
        self.parameters = [p for group in self.groups for p in group.parameters]
        self._steps: dict[Parameter, Parameter] = {}  # counts, of parameters that need them

    if not TYPE_CHECKING:  # else no wrong name of an attribute would be found

        def __getattr__(self, name: str) -> Any:
            raise missing(type(self).__name__, name, OF_OPTIMIZERS, self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OF_OPTIMIZERS:
            raise missing(type(self).__name__, name, OF_OPTIMIZERS, self)
        if any(hasattr(group.options, name) for group in vars(self).get("groups", ())):
            raise AttributeError(
                f"{type(self).__name__}: {name} is part of the updates that minimize has returned; "
                "make an optimizer with another one, and compile its minimize(loss). lr alone "
                "changes between calls"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        parts = (
            f"{(n := len(group.parameters))} parameter{'s' * (n != 1)}: lr={group.lr.numpy():g}"
            + "".join(f", {name}={value!r}" for name, value in vars(group.options).items())
            for group in self.groups
        )
        return f"{type(self).__name__}({'; '.join(parts)})"

    @property
    def lr(self) -> float:
        return float(self._lr.numpy())

    @lr.setter
    def lr(self, value: float) -> None:
        number = within("lr", NUMBER.check("lr", value))
        self.rates = [number * share for share in self.shares]

    @property
    def rates(self) -> list[float]:
        """The learning rate, and those of the groups that have their own, in order."""
        return [float(p.numpy()) for p in self._rates]

    @rates.setter
    def rates(self, values: Sequence[float]) -> None:
        for p, value in zip(self._rates, values, strict=True):
            p.assign(within("lr", value))

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

        grads       instead of the loss's own gradients, for some parameters or for all; then the
                    loss is not needed
        clip_norm   scales all gradients so that their norm together is at most this, as
                    `torch.nn.utils.clip_grad_norm_` does
        clip_value  brings each element of a gradient, before that, into [-clip_value, clip_value]
        reduce      `mg.distributed.world()`: take the mean of the gradients of all its processes,
                    before clipping.  All parameters begin as those of process 0

        As in torch, a parameter stays as it is if the loss does not depend on it, or only through
        `stop_gradient` and the like.  GraphError if that is so of all, ShapeError for a gradient of
        another shape than its parameter's.

        In a dict of several updates the last of a parameter counts, as in every dict.  To lower two
        losses at once, minimize their sum.
        """
        found = self._gradients(loss) if grads is None else self._given(grads)
        if reduce is not None:
            found = {p: mean_gradient(g, reduce, p.name) for p, g in found.items()}
        found = {p: astype(g, wide(p.dtype)) for p, g in found.items()}
        if clip_value is not None:
            bound = within("minimize: clip_value", clip_value)
            found = {p: clip(g, -bound, bound) for p, g in found.items()}
        if clip_norm is not None:
            found = _clipped(found, within("minimize: clip_norm", clip_norm))
        updates: Updates = {}
        for group in self.groups:
            if of_group := {p: found[p] for p in group.parameters if p in found}:
                self._descend(group, of_group, updates)
        descent = Descent(f"{type(self).__name__}.minimize", tuple(found), here())
        for value in updates.values():
            value.descent = descent
        return updates

    def _descend(self, group: Group[OptionsT], grads: Updates, updates: Updates) -> None:
        """Add the new values of a group's parameters, which have gradients, and of their state."""
        counts = [self._steps[p] for p in grads if p in self._steps]
        updates.update({count: count + 1 for count in counts})
        # As early as the parameters: what runs at the end would keep all gradients until then.
        with in_place_of(next(iter(grads)), like=updates[counts[0]] if counts else group.lr):
            numbers = self._numbers(group.lr, group.options, stack(counts) if counts else None)
            dtypes = dict.fromkeys(g.dtype for g in grads.values())
            typed = {d: [_each(as_operand(x, d), len(grads)) for x in numbers] for d in dtypes}
        for i, (p, g) in enumerate(grads.items()):
            own = [each[i] if p.ndim else each[i].reshape(()) for each in typed[g.dtype]]
            new = self._new(p, astype(p, g.dtype), g, own, group.options, updates)
            updates[p] = astype(new, p.dtype)

    def _gradients(self, loss: Any) -> Updates:
        """Return the gradients of a loss, for the parameters that it depends on."""
        if loss is None:
            raise GraphError(f"{type(self).__name__}.minimize takes a loss, or `grads`")
        trained = [p for p in self.parameters if p.trainable]
        return reached(f"{type(self).__name__}.minimize", loss, trained)

    def _given(self, grads: Mapping[Parameter, Any]) -> Updates:
        """Return gradients that the user gave, in dtypes that go with those of their parameters."""
        found: Updates = {}
        trained = {p for p in self.parameters if p.trainable}
        for p, g in grads.items():
            what = f"{type(self).__name__}.minimize: the gradient of {getattr(p, 'name', p)!s:.40}"
            if p not in trained:
                other = f"; {n}" if isinstance(p, Node) and (n := namesake(p, trained)) else ""
                raise GraphError(f"{what} is of no parameter that this optimizer trains{other}")
            node = as_node(g)
            if node.shape != p.shape:
                raise ShapeError(f"{what} has shape {node.shape}, not {p.shape}")
            found[p] = node if node.dtype == p.dtype else astype(node, wide(p.dtype))
        return found

    @abstractmethod
    def _numbers(self, lr: Node, options: OptionsT, steps: Node | None) -> tuple[Node | float, ...]:
        """Return what new values are computed with, besides gradients and state, in float64.

        steps  how many each parameter of the group has done, (n,); None if they are not counted.
               A number that depends on them is (n,), too
        """

    @abstractmethod
    def _new(
        self,
        p: Parameter,
        value: Node,
        g: Node,
        numbers: Sequence[Node],
        options: OptionsT,
        updates: Updates,
    ) -> Node:
        """Return the new value of a parameter; add the new values of its state to `updates`.

        value    what it has now, in the dtype of the gradient g
        numbers  those of `_numbers`, scalars in that dtype
        """

    def state_dict(self) -> dict[str, Array]:
        """Return copies of the state, by name: learning rates, counts of steps, averages, ....

        Numbers and sums are of a parameter's dtype, of 16-bit parameters float32; counts are int64.
        All are of one time: steps in other threads come before or after.
        GraphError if two parameters were given one name; those without names go by their place.
        """
        told_apart(f"{type(self).__name__}.state_dict", self._alike)
        return values_of(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what `state_dict()` gave, exactly, for the same parameter names.

        Raises GraphError (ShapeError, DTypeError) with all that does not fit, and sets nothing.
        """
        restore(f"{type(self).__name__}.load_state_dict", self._state, self._completed(state))

    def _completed(self, state: Any) -> Any:
        """Return a state of minigraph 0.2, which has one count and one rate, as one of today."""
        if not isinstance(state, Mapping):
            return state
        made, step, lr = dict(state), f"{self._name}.step", f"{self._name}.lr"
        counts = [p.name for p in self._steps.values()]
        if step in made and counts and made.keys().isdisjoint(counts):
            made |= dict.fromkeys(counts, made.pop(step))
        if lr in made:
            for p, share in zip(self._rates, self.shares, strict=True):
                made.setdefault(p.name, np.asarray(made[lr]) * share)
        return made

    def _make(self, name: str, value: Any) -> Parameter:
        name = f"{self._name}.{name}"
        self._state[name] = Parameter(value, name, trainable=False)
        return self._state[name]

    def _count_steps(self, where: Callable[[OptionsT], bool] = lambda _: True) -> None:
        """Count the steps of each parameter of the groups whose options need it."""
        self._steps = self._make_each("step", np.int64(0), where)

    def _make_each(
        self,
        name: str,
        value: float | np.int64 = 0.0,
        where: Callable[[OptionsT], bool] = lambda _: True,
    ) -> dict[Parameter, Parameter]:
        """Return a state for each parameter of the groups whose options need it.

        It is named after the parameter (and its place, if that is taken).

        value  of all its elements; an integer: a state that is one number
        """
        made: dict[Parameter, Parameter] = {}
        needed = {p for group in self.groups if where(group.options) for p in group.parameters}
        for i, p in enumerate(self.parameters):
            if p not in needed:
                continue
            if taken := f"{self._name}.{name}.{p.name}" in self._state:
                self._alike = given_name(p) or self._alike
            start: Any = value
            if isinstance(value, float):  # takes no memory
                start = np.broadcast_to(np.array(value, wide(p.dtype)), p.shape)
            made[p] = self._make(f"{name}.{p.name}" + f"#{i}" * taken, start)
        return made


def _each(numbers: Node, n: int) -> list[Node]:
    """Return the numbers of a vector, each (1,), or n times the number that there is."""
    return split(numbers, n) if numbers.ndim else [numbers] * n


def reached(what: str, loss: Node, parameters: list[Parameter]) -> Updates:
    """Return the gradients of a loss, for those of the parameters that have a way from it.

    GraphError that begins with `what` if none has.
    """
    grads = dict(zip(parameters, grad(loss, parameters), strict=True))
    found = {p: g for p, g in grads.items() if not _is_nothing(g)}
    if found:
        return found
    what = f"{what}: the loss (made {loss.source})"
    read = Graph((), (loss,)).parameters
    if set(read).isdisjoint(parameters):
        other = next(filter(None, (namesake(p, read) for p in parameters)), "")
        what = f"{what} depends on none of the parameters that are trained here"
        raise GraphError(f"{what}; {other}" if other else what)
    raise GraphError(
        f"{what} has no gradient: it depends on the parameters only through ops that change in "
        "steps, such as argmax and comparisons, or through stop_gradient"
    )


def _is_nothing(gradient: Node) -> bool:
    """Return whether `grad` found no way from the loss to a parameter, and gave zeros."""
    while gradient.op.is_view and len(gradient.inputs) == 1:
        (gradient,) = gradient.inputs
    return isinstance(gradient.op, Constant) and not gradient.op.value.any()


def _groups(
    what: str, given: list[Any], lr: float, options: OptionsT
) -> list[tuple[list[Parameter], float, OptionsT]]:
    """Return the groups that a user gave: the parameters that are trainable, rate and options."""
    dicts = given if given and isinstance(given[0], Mapping) else [{"params": given}]
    groups: list[tuple[list[Parameter], float, OptionsT]] = []
    seen: dict[Parameter, None] = {}
    for i, one in enumerate(dicts):
        if not isinstance(one, Mapping) or "params" not in one:
            raise GraphError(f"{what}: group {i} is no dict with a list of parameters as `params`")
        others = {name: value for name, value in one.items() if name not in ("params", "lr")}
        try:
            own = replace(options, **others)
        except TypeError:
            known = ", ".join(["lr", *options.__dataclass_fields__])
            raise GraphError(f"{what}: group {i} takes params, {known}, not {[*others]}") from None
        rate = within("lr", NUMBER.check("lr", one.get("lr", lr)))
        if rate != lr and not lr:
            raise GraphError(f"{what}: groups with rates of their own take an lr above 0")
        trained = _trainable(what, _several(one["params"]), seen)
        groups.append((trained, rate, own))
    if not any(trained for trained, _, _ in groups):
        if not seen:
            raise GraphError(
                f"{what}: there are no parameters; an iterator such as net.parameters() gives "
                "them only once"
            )
        raise GraphError(f"{what}: none of {len(seen)} parameters is trainable")
    return groups


def _trainable(what: str, parameters: list[Any], seen: dict[Parameter, None]) -> list[Parameter]:
    """Return the parameters that are trainable; none may be among those `seen` before."""
    for p in listed(what, parameters):
        if p in seen:
            raise GraphError(f"{what}: parameter {p.name} is there twice")
        if p.trainable and kind(p.dtype) != "f":
            raise DTypeError(f"{what}: parameter {p.name} is {p.dtype.name}, which has no gradient")
        seen[p] = None
    return [p for p in parameters if p.trainable]


def listed(what: str, parameters: Iterable[Any]) -> list[Parameter]:
    """Return parameters as a list; a GraphError that begins with `what` if one is none."""
    found = list(parameters)
    for p in found:
        if not isinstance(p, Parameter):
            raise GraphError(f"{what}: parameters are mg.Parameters, not {type(p).__name__}")
    return found


def given_name(p: Parameter) -> str | None:
    """Return the name that a parameter was given; None if it was given none."""
    return None if p.name == "parameter" else p.name


def told_apart(what: str, name: str | None) -> None:
    """Raise a GraphError that begins with `what` if two parameters have a name, which is not None.

    In another order each would get the other's state.
    """
    if name is not None:
        raise GraphError(
            f"{what}: two parameters are named {name}, so their states could not be told apart; "
            "before the optimizer, make one module of both networks, such as "
            'nn.ModuleDict({"a": a, "b": b}), or give names by Parameter.rename'
        )


def _clipped(grads: Updates, most: float) -> Updates:
    """Return gradients whose norm together is at most `most`."""
    squares = [square(g).sum() for g in grads.values()]
    total = squares[0]
    for each in squares[1:]:
        total = total + each
    factor = minimum(most / (sqrt(total) + 1e-6), 1.0)
    return {p: g * astype(factor, g.dtype) for p, g in grads.items()}


def wide(dtype: DType) -> DType:
    """Return the dtype in which sums of a dtype's numbers are taken: at least float32."""
    return np.promote_types(dtype, np.float32)


def within(what: str, number: float, low: float = 0, high: float = math.inf) -> float:
    """Return `number`; a GraphError that names `what` if it is not in [low, high)."""
    if not low <= number < high:
        raise GraphError(f"{what} is {number!r}; it takes a number in [{low:g}, {high:g})")
    return number

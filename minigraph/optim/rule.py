"""Update rules, pure functions of expressions as in optax, and the groups that they train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import numpy as np

from minigraph.arguments import NOT_NEGATIVE, Kind, mapping, number_in, with_predicate
from minigraph.errors import DTypeError, GraphError
from minigraph.graph import Array, DType, Node, Parameter, Spec
from minigraph.ops.elementwise import kind

State = Mapping[str, Node]
Coefficients = tuple[Node | float, ...]
Update = tuple[Node, dict[str, Node]]  # the new value and the new state of a parameter


FRACTION = number_in(0, 1)
Fraction = Annotated[float, FRACTION]
PAIR = with_predicate(lambda pair: len(pair) == 2, lambda value: tuple(map(FRACTION.parse, value)))
Betas = Annotated[tuple[float, float], Kind("a pair of numbers in [0, 1)", PAIR)]


@dataclass(frozen=True)
class UpdateRule(ABC):
    """The update rule of a parameter.  The fields are the hyperparameters, without `lr`."""

    @property
    def hyperparameters(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @abstractmethod
    def init(self, p: Spec) -> dict[str, Array]:
        """Return the state of a parameter before the first step, by name.

        A rule that depends on the number of steps has a `step`, which the optimizer counts.
        """

    @abstractmethod
    def coefficients(self, lr: Node, steps: Node | None) -> Coefficients:
        """Return the numbers that `update` takes, for parameters with the same hyperparameters.

        They are float64, like torch's Python floats, and are computed once for all parameters.

        steps  the numbers of steps of n parameters so far, (n,); None if the state has no `step`.
               A coefficient that depends on them is (n,), too
        """

    @abstractmethod
    def update(self, p: Node, g: Node, state: State, coefficients: Sequence[Node]) -> Update:
        """Return the new value and the new state, without `step`, of a parameter p of gradient g.

        coefficients  scalars of the dtype of p and g
        """


INITIAL_STEP = np.array(0, np.int64)  # the first value of a `step`


def filled(p: Spec, value: float = 0.0) -> Array:
    """Return the initial value of a state with the shape of p, without memory."""
    return np.broadcast_to(np.array(value, accumulator(p.dtype)), p.shape)


def accumulator(dtype: DType) -> DType:
    """Return the dtype in which numbers of a dtype are summed: at least float32."""
    return np.promote_types(dtype, np.float32)


def _parameters_or_groups(value: Any) -> list[Any]:
    if hasattr(value, "parameters"):
        raise GraphError(f"{type(value).__name__} is a module; pass its parameters()")
    if isinstance(value, Node | Mapping):
        raise TypeError
    return list(value)


Parameters = Annotated[
    Iterable[Parameter] | Iterable[Mapping[str, Any]],
    Kind(
        "a list of parameters, or of dicts with a list of them as `params`", _parameters_or_groups
    ),
]
GROUP = Kind("a dict with a list of parameters as `params`", mapping)


@dataclass(frozen=True, eq=False)
class ParameterGroup(Mapping[str, Any]):
    """Parameters that are trained alike, and their learning rate; by name as a group of torch.

    >>> adam = optim.Adam([mg.Parameter([1.0])], lr=0.5)
    >>> adam.param_groups[0]["lr"] = 0.25  # from the next call on
    >>> adam.param_groups[0]["lr"], adam.param_groups[0]["betas"]
    (0.25, (0.9, 0.999))
    """

    parameters: Sequence[Parameter]
    lr: Parameter
    rule: UpdateRule

    def __getitem__(self, name: str) -> Any:
        match name:
            case "params":
                return [*self.parameters]
            case "lr":
                return float(self.lr.numpy())
        return self.rule.hyperparameters[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name != "lr":
            raise GraphError(
                f"{name} of a group cannot be set: it is part of the updates that minimize has "
                "returned; only lr can change between calls"
            )
        self.lr.assign(NOT_NEGATIVE.check("lr", value))

    def __iter__(self) -> Iterator[str]:
        return iter(("params", "lr", *self.rule.hyperparameters))

    def __len__(self) -> int:
        return 2 + len(self.rule.hyperparameters)


def parsed_groups(
    caller: str, parameters: list[Any], lr: float, rule: UpdateRule, used: Iterable[Parameter] = ()
) -> list[tuple[list[Parameter], float, UpdateRule]]:
    """Return the user's groups: trainable parameters, rate and rule of each.

    caller  the beginning of errors
    used    parameters of other groups
    """
    dicts = parameters
    if not (parameters and isinstance(parameters[0], Mapping)):
        dicts = [{"params": parameters}]
    groups: list[tuple[list[Parameter], float, UpdateRule]] = []
    members = dict.fromkeys(used)  # of all groups
    used_count = len(members)
    for i, group in enumerate(dicts):
        if not isinstance(group, Mapping) or "params" not in group:
            raise GraphError(f"{caller}: group {i} is not a dict with parameters as `params`")
        values = {name: value for name, value in group.items() if name not in ("params", "lr")}
        try:
            group_rule = replace(rule, **values)
        except TypeError:
            names = ", ".join(["lr", *rule.hyperparameters])
            raise GraphError(
                f"{caller}: group {i} takes params, {names}, not {[*values]}"
            ) from None
        rate = NOT_NEGATIVE.check("lr", group.get("lr", lr))
        if rate != lr and not lr:
            raise GraphError(f"{caller}: groups with their own rates take an lr above 0")
        trained = _trainable(caller, _parameters_or_groups(group["params"]), members)
        groups.append((trained, rate, group_rule))
    if not any(parameters for parameters, _, _ in groups):
        if len(members) == used_count:
            raise GraphError(
                f"{caller}: no parameters were given; an iterator such as net.parameters() gives "
                "them only once"
            )
        raise GraphError(f"{caller}: none of {len(members) - used_count} parameters is trainable")
    return groups


def _trainable(caller: str, values: list[Any], members: dict[Parameter, None]) -> list[Parameter]:
    """Add parameters to the members of groups, once each, and return those that are trainable."""
    for p in parameter_list(caller, values):
        if p in members:
            raise GraphError(f"{caller}: parameter {p.name} is listed twice")
        if p.trainable and kind(p.dtype) != "f":
            raise DTypeError(f"{caller}: parameter {p.name} is {p.dtype.name}, not a float")
        members[p] = None
    return [p for p in values if p.trainable]


def parameter_list(caller: str, values: Iterable[Any]) -> list[Parameter]:
    """Return parameters as a list; a GraphError that begins with `caller` for anything else."""
    parameters = list(values)
    for p in parameters:
        if not isinstance(p, Parameter):
            raise GraphError(f"{caller}: parameters are mg.Parameters, not {type(p).__name__}")
    return parameters

"""Optimizers of PyTorch as rules of minigraph, with their state in PyTorch's own memory."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch

from minigraph.errors import GraphError
from minigraph.graph import Array, Node, Parameter, Spec
from minigraph.ops import astype
from minigraph.optim.algorithms import AdagradRule, AdamRule, AdamWRule, RMSpropRule, SGDRule
from minigraph.optim.optimizer import Optimizer
from minigraph.optim.rule import (
    INITIAL_STEP,
    Coefficients,
    ParameterGroup,
    State,
    Update,
    UpdateRule,
)
from minigraph.torch.memory import SharedParameters, address, from_real

Group = Mapping[str, Any]  # of an optimizer of torch: parameters and hyperparameters


class Equivalent(NamedTuple):
    """The minigraph rule of a class of `torch.optim`.

    rule    whose hyperparameters have torch's names
    counts  whether torch's state counts steps
    names   torch's names of the rule's state, if they differ
    """

    rule: type[UpdateRule]
    counts: bool = True
    names: Mapping[str, str] = {}

    @property
    def hyperparameters(self) -> list[str]:
        return [each.name for each in fields(self.rule)]

    def rule_of(self, group: Group) -> UpdateRule:
        """Return the rule of a group with its present numbers."""
        rule = AdamWRule if group.get("decoupled_weight_decay") else self.rule
        return rule(**{name: _plain(group[name]) for name in self.hyperparameters})


MOMENTUM_BUFFER = {"momentum": "momentum_buffer"}
EQUIVALENTS: dict[type[torch.optim.Optimizer], Equivalent] = {
    torch.optim.SGD: Equivalent(SGDRule, False, MOMENTUM_BUFFER),
    torch.optim.Adam: Equivalent(AdamRule),
    torch.optim.AdamW: Equivalent(AdamWRule),
    torch.optim.RMSprop: Equivalent(RMSpropRule, names=MOMENTUM_BUFFER),
    torch.optim.Adagrad: Equivalent(AdagradRule),
}
# Schedulers change these between steps, and the learning rate.  Whether one is 0 is part of the
# graph, as are all other hyperparameters.
SCHEDULED = ("momentum", "betas", "weight_decay")


@dataclass(frozen=True)
class TorchRule(UpdateRule):
    """A rule with expressions for some hyperparameters.

    rule      the rule with the numbers of the compilation
    live      the rule with expressions for the numbers that schedulers change
    maximize  whether the loss is maximised
    counts    whether torch counts steps although the rule does not
    """

    rule: UpdateRule
    live: UpdateRule = field(compare=False)
    maximize: bool
    counts: bool

    @property
    def hyperparameters(self) -> dict[str, Any]:
        return self.rule.hyperparameters

    def init(self, p: Spec) -> dict[str, Array]:
        return {**({"step": INITIAL_STEP} if self.counts else {}), **self.rule.init(p)}

    def coefficients(self, lr: Node, steps: Node | None) -> Coefficients:
        return self.live.coefficients(lr, steps)

    def update(self, p: Node, g: Node, state: State, coefficients: Sequence[Node]) -> Update:
        # torch's state has the dtype of the parameter, which may be narrower than the gradient's.
        wide = {name: astype(x, g.dtype) for name, x in state.items() if name != "step"}
        return self.rule.update(p, -g if self.maximize else g, wide, coefficients)


class SharedState:
    """The state and the hyperparameters of an optimizer of torch, as parameters.

    optimizer  any; its state is shared if it is one of EQUIVALENTS and has no hooks
    shared     contains the model's parameters; the state is added
    """

    def __init__(self, optimizer: torch.optim.Optimizer, shared: SharedParameters) -> None:
        self.optimizer, self.shared = optimizer, shared
        self.equivalent = EQUIVALENTS.get(type(optimizer))
        self._slots: dict[tuple[int, str], _Slot] = {}
        # Whether SGD has a momentum buffer: without one, the gradient is not dampened.
        self._has_momentum: dict[int, Parameter] = {}
        self._numbers: dict[tuple[int, str, int], Parameter] = {}
        self._contents: list[Any] = []  # all values in the groups
        self._has_tensors = True
        self._key: tuple[Any, ...] = (None,)
        # The state's tensors; None if slots have been added that `refresh` has not seen.
        self._tensors: list[Any] | None = None
        self._addresses: list[int] = []
        if shared.device.type != "cpu" and self.is_shared:
            optimizer.register_state_dict_post_hook(_move_steps_to_cpu)

    @property
    def is_shared(self) -> bool:
        """Whether the updates are part of the graph; else torch's own `step` makes them."""
        optimizer = self.optimizer
        hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
        return self.equivalent is not None and not hooks

    # ------------------------------------------------------------ before each call

    def key(self) -> tuple[Any, ...]:
        """Return those values of the groups that the graph depends on; set the live numbers."""
        groups = self.optimizer.param_groups
        values = [*chain.from_iterable(map(dict.values, groups))]
        contents = [*values, *chain.from_iterable(group["params"] for group in groups)]
        is_shared = self.is_shared
        unknown = self._has_tensors or is_shared != self._key[0]
        before = self._contents
        if unknown or len(contents) != len(before) or not all(map(is_, contents, before)):
            numbers = chain.from_iterable(x if isinstance(x, tuple) else (x,) for x in values)
            self._has_tensors = any(isinstance(x, torch.Tensor) for x in numbers)
            self._key = (is_shared, *map(self._structure, groups))
            self._set_numbers()
            self._contents = contents
        return self._key

    def _structure(self, group: Group) -> tuple[Any, ...]:
        parameters = tuple(map(id, group["params"]))
        if self.equivalent is None:
            return parameters
        if group.get("differentiable"):
            raise GraphError(
                f"{type(self.optimizer).__name__} with differentiable=True is not supported: "
                "a compiled step cannot be differentiated"
            )
        others = ("lr_decay", "maximize", "decoupled_weight_decay")
        fixed = (
            None if name == "betas" else bool(group[name]) if name in SCHEDULED else group.get(name)
            for name in (*self.equivalent.hyperparameters, *others)
        )
        return (*parameters, *map(_plain, fixed))

    def _set_numbers(self) -> None:
        for (i, name, j), parameter in self._numbers.items():
            if i < len(self.optimizer.param_groups):
                value = self.optimizer.param_groups[i][name]
                parameter.assign(float(value[j] if isinstance(value, list | tuple) else value))

    def refresh(self) -> None:
        """Adopt loaded states, and make those that torch would make in its first step."""
        if not self._slots:
            return
        if self._tensors is not None and self._is_unchanged():
            return
        for slot in self._slots.values():
            state = self.optimizer.state[slot.owner]
            has_momentum = self._has_momentum.get(id(slot.owner))
            if has_momentum is not None and state.get(slot.key) is not slot.tensor:
                has_momentum.assign(float(state.get(slot.key) is not None))
            slot.adopt(state)
        self._tensors = self._state_values()
        self._addresses = [*map(address, filter(torch.is_tensor, self._tensors))]

    def _state_values(self) -> list[Any]:
        states = self.optimizer.state.values()
        return [*chain.from_iterable(map(dict.values, states))]

    def _is_unchanged(self) -> bool:
        """Return whether the state still has the adopted tensors, at the same addresses."""
        values = self._state_values()
        try:
            # Lists compare objects by identity first.  For another tensor in the same memory they
            # compare elements, which raises RuntimeError unless there is exactly one.
            return [*map(address, values)] == self._addresses and values == self._tensors
        except (RuntimeError, TypeError):  # TypeError: the state contains more than tensors
            return False

    # ------------------------------------------------------------ for the graph

    def number(self, i: int, name: str, j: int = 0) -> Parameter:
        """Return a hyperparameter of group i as a parameter; of a pair, element j."""
        if (i, name, j) not in self._numbers:
            parameter = Parameter(np.float64(0), f"{name}#{i}" if i else name, trainable=False)
            self._numbers[i, name, j] = parameter
            self._set_numbers()
        return self._numbers[i, name, j]

    def state(self, tensor: torch.Tensor, rule: UpdateRule) -> dict[str, Parameter]:
        """Return the state of a tensor by the rule's names, in torch's memory."""
        assert self.equivalent is not None
        self._tensors = None
        p = self.shared[tensor]
        parameters = {}
        for name, initial in rule.init(p.spec).items():
            if name == "step" and not self.equivalent.counts:
                has_buffer = self.optimizer.state.get(tensor, {}).get("momentum_buffer") is not None
                has_momentum = Parameter(np.float32(has_buffer), f"begun.{p.name}", trainable=False)
                parameters[name] = self._has_momentum.setdefault(id(tensor), has_momentum)
                continue
            key = self.equivalent.names.get(name, name)
            if (id(tensor), key) not in self._slots:
                value = self.optimizer.state.get(tensor, {}).get(key)
                self._slots[id(tensor), key] = _Slot(tensor, key, initial, value, self.shared)
            parameters[name] = self._slots[id(tensor), key].parameter
        return parameters


class _Slot:
    """A tensor in an optimizer's state.

    owner    parameter of the state
    key      torch's name of the tensor
    initial  value before the first step
    value    the tensor in torch's state; None before torch's first step
    """

    def __init__(
        self, owner: torch.Tensor, key: str, initial: Array, value: Any, shared: SharedParameters
    ) -> None:
        self.owner, self.key, self._initial_value, self._shared = owner, key, initial, shared
        self._dtype = owner.dtype
        if key == "step":
            is_double = torch.get_default_dtype() is torch.float64
            self._dtype = torch.float64 if is_double else torch.float32
        self._is_unset = value is None  # torch makes it in its first step
        self.tensor = self._initial() if value is None else self._on_owner(value)
        self.parameter = shared.share(self.tensor, f"{key}.{shared[owner].name}")
        self._address = self.tensor.data_ptr()

    def _initial(self) -> torch.Tensor:
        shape, dtype = self._initial_value.shape, self._dtype.to_real()
        tensor = torch.empty(shape, dtype=dtype, device=self.owner.device)
        tensor.copy_(torch.from_numpy(np.array(self._initial_value)))
        return from_real(tensor, self._dtype)

    def _on_owner(self, value: Any) -> torch.Tensor:
        """Return a loaded value, which may be a number or of another dtype, as a tensor."""
        return torch.as_tensor(value).to(self.owner.device, self._dtype)

    def adopt(self, state: dict[str, Any]) -> None:
        """Use the tensor in the owner's state, or add one to it."""
        value = state.get(self.key)
        if value is None:
            new = self.tensor if self._is_unset else self._initial()
        else:
            new = self._on_owner(value)
        if new is not self.tensor or new.data_ptr() != self._address:
            self._shared.replace(self.tensor, new)
            self.tensor, self._address = new, new.data_ptr()
        self._is_unset = False
        state[self.key] = new


class TorchOptimizer(Optimizer):
    """The updates of an optimizer of torch, one of EQUIVALENTS.

    trained  the parameters that have gradients, a set or a dict of them
    """

    def __init__(self, state: SharedState, trained: Collection[Parameter]) -> None:
        self._states: dict[Parameter, dict[str, Parameter]] = {}
        groups = enumerate(state.optimizer.param_groups)
        self._groups = [self._group(state, i, group, trained) for i, group in groups]
        self.parameters = [*self._states]

    def _group(
        self, state: SharedState, i: int, group: Group, trained: Collection[Parameter]
    ) -> ParameterGroup:
        assert state.equivalent is not None
        rule = state.equivalent.rule_of(group)
        live = copy.copy(rule)
        for name, value in rule.hyperparameters.items():
            if name in SCHEDULED and isinstance(value, tuple):
                numbers: Any = tuple(state.number(i, name, j) for j in range(len(value)))
                object.__setattr__(live, name, numbers)
            elif name in SCHEDULED and value:
                object.__setattr__(live, name, state.number(i, name))
        torch_rule = TorchRule(rule, live, bool(group.get("maximize")), state.equivalent.counts)
        parameters = []
        for tensor in group["params"]:
            if tensor in state.shared and (parameter := state.shared[tensor]) in trained:
                self._states[parameter] = state.state(tensor, torch_rule)
                parameters.append(parameter)
        return ParameterGroup(parameters, state.number(i, "lr"), torch_rule)


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer computes the loss itself, several times a step."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _move_steps_to_cpu(optimizer: torch.optim.Optimizer, saved: Group) -> Group:
    """Return a state dict whose step counts are on the CPU if PyTorch keeps them there.

    A compiled step counts on the GPU; PyTorch's own step would wait for the GPU at each count.
    """
    on_cpu = {
        i
        for group in saved["param_groups"]
        for i in group["params"]
        if not (group.get("capturable") or group.get("fused"))
    }
    state = {
        i: {**each, "step": each["step"].cpu()} if i in on_cpu and "step" in each else each
        for i, each in saved["state"].items()
    }
    return {**saved, "state": state}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, torch.Tensor) else value

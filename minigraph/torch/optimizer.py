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
from minigraph.torch.memory import SharedParameters, address

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

    def of(self, group: Group) -> UpdateRule:
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
# What schedulers change between steps, besides the learning rate.  Whether one is 0 is part of the
# graph, as are all other hyperparameters.
SCHEDULED = ("momentum", "betas", "weight_decay")


@dataclass(frozen=True)
class TorchRule(UpdateRule):
    """A rule with expressions for some hyperparameters.

    of        the rule with the numbers of the compilation
    live      the rule with expressions for the numbers that schedulers change
    maximize  whether to maximise the loss
    counts    whether torch counts steps although the rule does not
    """

    of: UpdateRule
    live: UpdateRule = field(compare=False)
    maximize: bool
    counts: bool

    @property
    def hyperparameters(self) -> dict[str, Any]:
        return self.of.hyperparameters

    def init(self, p: Spec) -> dict[str, Array]:
        return {**({"step": INITIAL_STEP} if self.counts else {}), **self.of.init(p)}

    def coefficients(self, lr: Node, steps: Node | None) -> Coefficients:
        return self.live.coefficients(lr, steps)

    def update(self, p: Node, g: Node, state: State, coefficients: Sequence[Node]) -> Update:
        # torch's state has the dtype of the parameter, with which ours of 16 bits is computed.
        wide = {name: astype(x, g.dtype) for name, x in state.items() if name != "step"}
        return self.of.update(p, -g if self.maximize else g, wide, coefficients)


class SharedState:
    """The state and the hyperparameters of an optimizer of torch, as parameters.

    optimizer  any; its state is shared if it is one of EQUIVALENTS and has no hooks
    shared     has the parameters of the model, and gets the state
    """

    def __init__(self, optimizer: torch.optim.Optimizer, shared: SharedParameters) -> None:
        self.optimizer, self.shared = optimizer, shared
        self.equivalent = EQUIVALENTS.get(type(optimizer))
        self._slots: dict[tuple[int, str], _Slot] = {}
        # Whether SGD has a buffer of momentum: its first gradient is not dampened.
        self._begun: dict[int, Parameter] = {}
        self._numbers: dict[tuple[int, str, int], Parameter] = {}
        self._seen: list[Any] = []  # all that the groups hold
        self._has_tensors = True
        self._key: tuple[Any, ...] = (None,)
        # The state's tensors; None if there are slots that no look at the state has filled.
        self._tensors: list[Any] | None = None
        self._addresses: list[int] = []
        if shared.device.type != "cpu" and self.is_shared:
            optimizer.register_state_dict_post_hook(_steps_where_torch_has_them)

    @property
    def is_shared(self) -> bool:
        """Whether the updates are part of the graph; else torch's own `step` makes them."""
        optimizer = self.optimizer
        hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
        return self.equivalent is not None and not hooks

    # ------------------------------------------------------------ before each call

    def key(self) -> tuple[Any, ...]:
        """Return the part of the groups that the graph depends on, and set the live numbers."""
        groups = self.optimizer.param_groups
        held = [*chain.from_iterable(map(dict.values, groups))]
        found = [*held, *chain.from_iterable(group["params"] for group in groups)]
        is_shared = self.is_shared
        unsure = self._has_tensors or is_shared != self._key[0]
        if unsure or len(found) != len(self._seen) or not all(map(is_, found, self._seen)):
            each = chain.from_iterable(x if isinstance(x, tuple) else (x,) for x in held)
            self._has_tensors = any(isinstance(x, torch.Tensor) for x in each)
            self._key = (is_shared, *map(self._structure, groups))
            self._set_numbers()
            self._seen = found
        return self._key

    def _structure(self, group: Group) -> tuple[Any, ...]:
        parameters = tuple(map(id, group["params"]))
        if self.equivalent is None:
            return parameters
        if group.get("differentiable"):
            raise GraphError(
                f"{type(self.optimizer).__name__} with differentiable=True: the step "
                "has no gradient of its own"
            )
        rest = ("lr_decay", "maximize", "decoupled_weight_decay")
        fixed = (
            None if name == "betas" else bool(group[name]) if name in SCHEDULED else group.get(name)
            for name in (*self.equivalent.hyperparameters, *rest)
        )
        return (*parameters, *map(_plain, fixed))

    def _set_numbers(self) -> None:
        for (i, name, j), parameter in self._numbers.items():
            if i < len(self.optimizer.param_groups):
                value = self.optimizer.param_groups[i][name]
                parameter.assign(float(value[j] if isinstance(value, list | tuple) else value))

    def refresh(self) -> None:
        """Take states that were loaded, and make those that torch would make in its first step."""
        if not self._slots:
            return
        if self._tensors is not None and self._is_unchanged():
            return
        for slot in self._slots.values():
            state = self.optimizer.state[slot.owner]
            begun = self._begun.get(id(slot.owner))
            if begun is not None and state.get(slot.key) is not slot.tensor:
                begun.assign(float(state.get(slot.key) is not None))
            slot.adopt(state)
        self._tensors = self._found()
        self._addresses = [*map(address, filter(torch.is_tensor, self._tensors))]

    def _found(self) -> list[Any]:
        states = self.optimizer.state.values()
        return [*chain.from_iterable(map(dict.values, states))]

    def _is_unchanged(self) -> bool:
        """Return whether the state still has the adopted tensors, at the same addresses."""
        found = self._found()
        try:
            # Lists compare objects by identity first.  The elements of other tensors in the same
            # memory are compared, which is an error unless there is one.
            return [*map(address, found)] == self._addresses and found == self._tensors
        except (RuntimeError, TypeError):  # TypeError: something in the state is no tensor
            return False

    # ------------------------------------------------------------ for the graph

    def number(self, i: int, name: str, j: int = 0) -> Parameter:
        """Return a number of a group, that of a pair at place j, as a parameter."""
        if (i, name, j) not in self._numbers:
            made = Parameter(np.float64(0), f"{name}#{i}" if i else name, trainable=False)
            self._numbers[i, name, j] = made
            self._set_numbers()
        return self._numbers[i, name, j]

    def state(self, tensor: torch.Tensor, rule: UpdateRule) -> dict[str, Parameter]:
        """Return the state of a tensor by the rule's names, in the memory of torch's."""
        assert self.equivalent is not None
        self._tensors = None
        p = self.shared[tensor]
        made = {}
        for name, first in rule.init(p.spec).items():
            if name == "step" and not self.equivalent.counts:
                has = self.optimizer.state.get(tensor, {}).get("momentum_buffer") is not None
                begun = Parameter(np.float32(has), f"begun.{p.name}", trainable=False)
                made[name] = self._begun.setdefault(id(tensor), begun)
                continue
            key = self.equivalent.names.get(name, name)
            if (id(tensor), key) not in self._slots:
                found = self.optimizer.state.get(tensor, {}).get(key)
                self._slots[id(tensor), key] = _Slot(tensor, key, first, found, self.shared)
            made[name] = self._slots[id(tensor), key].parameter
        return made


class _Slot:
    """A tensor in an optimizer's state.

    owner  parameter of the state
    key    torch's name of the tensor
    first  its initial value
    found  the tensor in torch's state, None before torch's first step
    """

    def __init__(
        self, owner: torch.Tensor, key: str, first: Array, found: Any, shared: SharedParameters
    ) -> None:
        self.owner, self.key, self._first, self._shared = owner, key, first, shared
        self._dtype = owner.dtype
        if key == "step":
            double = torch.get_default_dtype() is torch.float64
            self._dtype = torch.float64 if double else torch.float32
        self._unused = found is None  # torch makes it in the first step, so it is not there yet
        self.tensor = self._made() if found is None else self._converted(found)
        self.parameter = shared.share(self.tensor, f"{key}.{shared[owner].name}")
        self._address = self.tensor.data_ptr()

    def _made(self) -> torch.Tensor:
        made = torch.empty(self._first.shape, dtype=self._dtype, device=self.owner.device)
        return made.copy_(torch.from_numpy(np.array(self._first)))

    def _converted(self, found: Any) -> torch.Tensor:
        """Return a loaded value, which may be a number or of another dtype."""
        return torch.as_tensor(found).to(self.owner.device, self._dtype)

    def adopt(self, state: dict[str, Any]) -> None:
        """Use the tensor that is in the state of the owner, or put one there."""
        found = state.get(self.key)
        if found is None:
            new = self.tensor if self._unused else self._made()
        else:
            new = self._converted(found)
        if new is not self.tensor or new.data_ptr() != self._address:
            self._shared.replace(self.tensor, new)
            self.tensor, self._address = new, new.data_ptr()
        self._unused = False
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
        rule = state.equivalent.of(group)
        live = copy.copy(rule)
        for name, value in rule.hyperparameters.items():
            if name in SCHEDULED and isinstance(value, tuple):
                numbers: Any = tuple(state.number(i, name, j) for j in range(len(value)))
                object.__setattr__(live, name, numbers)
            elif name in SCHEDULED and value:
                object.__setattr__(live, name, state.number(i, name))
        whole = TorchRule(rule, live, bool(group.get("maximize")), state.equivalent.counts)
        parameters = []
        for tensor in group["params"]:
            if tensor in state.shared and (parameter := state.shared[tensor]) in trained:
                self._states[parameter] = state.state(tensor, whole)
                parameters.append(parameter)
        return ParameterGroup(parameters, state.number(i, "lr"), whole)


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer computes the loss itself, several times a step."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _steps_where_torch_has_them(optimizer: torch.optim.Optimizer, saved: Group) -> Group:
    """Return a state dict whose counts of steps are on the CPU, if PyTorch would have them there.

    A step on a GPU counts there; PyTorch's own would wait for the GPU at each of them.
    """
    there = {
        i
        for group in saved["param_groups"]
        for i in group["params"]
        if not (group.get("capturable") or group.get("fused"))
    }
    state = {
        i: {**each, "step": each["step"].cpu()} if i in there and "step" in each else each
        for i, each in saved["state"].items()
    }
    return {**saved, "state": state}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, torch.Tensor) else value

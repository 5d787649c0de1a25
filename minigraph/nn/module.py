"""Modules: trees of parameters with a forward pass, as in `torch.nn`.

A module builds expressions, independent of their compilation.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from minigraph.arguments import Name, checked, first_names
from minigraph.errors import GraphError, attribute_error, located, warn_once
from minigraph.graph import Array, Changes, Node, Parameter, here, values_of
from minigraph.graph.location import layer, scope
from minigraph.serialization import Incompatible, restore

T = TypeVar("T")

MAX_DEPTH = 100  # levels of nested modules; calls and copies recurse

_clock = itertools.count(1)


class ModuleState(Parameter):
    """State of a module that is not trained: in `state_dict()`, not among `parameters()`.

    >>> seen = nn.ModuleState(np.zeros(3), name="seen")
    >>> seen.trainable
    False
    """

    __slots__ = ()

    def __init__(self, value: Any, name: str = "parameter", *, dtype: Any = None) -> None:
        super().__init__(value, name, dtype=dtype, trainable=False)


class _Calls(NamedTuple):
    """The calls of a module for one graph: the time of the last, and the updates of all."""

    last: int
    updates: Mapping[Parameter, Node]


class Module:
    """A part of a network.  Subclasses assign their parts in `__init__` and define `forward`.

    Attributes that are parameters, buffers or modules belong to the module, under the attribute's
    name.  A `Parameter` without a name is named after the path of its modules and its attribute
    ("layer1.0.conv1.weight").  Errors and reports show the path of a layer that was called.

    >>> from minigraph import nn, ops
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.fc = nn.Linear(4, 2)
    ...     def forward(self, x):
    ...         return ops.relu(self.fc(x))
    >>> Net()
    Net(
      (fc): Linear(in_features=4, out_features=2, bias=True)
    )
    """

    training: bool = True
    _repr_format: ClassVar[str] = ""  # of the attributes that `repr` shows

    _name: str = ""  # the attribute of the parent
    _calls: _Calls = _Calls(0, {})
    _last_query: int = 0  # the time of the last call of `updates()`
    _warned: frozenset[str] = frozenset()  # attributes with unregistered parts

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's result for expressions.  Call the module, not this method."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = [(module, module._calls) for module in self.modules()]
        for name, value in list(vars(self).items()):  # a list may be filled after its assignment
            self._warn_unregistered(name, value)
        if not scope.called:
            self._warn_arrays([*args, *kwargs.values()])
        new_graph = self._last_query > self._calls.last
        self._calls = _Calls(next(_clock), {} if new_graph else self._calls.updates)
        start = self._calls.updates
        with layer(self._name):
            try:
                result = self.forward(*args, **kwargs)
                self._mark_changes(result, start)
                return result
            except Exception as error:
                for module, calls in before:  # a failing call changes no state
                    module._calls = calls
                if not isinstance(error, GraphError):
                    raise
                operands = [x for x in args if isinstance(x, Node)]
                raise located(error, type(self).__name__, operands, here()) from None

    def __setattr__(self, name: str, value: Any) -> None:
        old = vars(self).get(name)
        if isinstance(old, Parameter) and not (value is None or isinstance(value, Parameter)):
            raise GraphError(
                f"{type(self).__name__}.{name} is a parameter ({old.spec}); "
                f"{name}.assign(value) sets its value, and nn.Parameter(value) can replace it"
            )
        if isinstance(value, Parameter) and value.name == "parameter":
            value.rename(name)
        elif isinstance(value, Module):
            if any(module is self for module in value.modules()):
                raise GraphError(f"{type(self).__name__}: {name} would contain itself")
            value._set_name(self._child_path(name))
            for path, parameter in value._state():
                if parameter.name == path:  # else the user named it, or another parent did
                    parameter.rename(f"{value._name}.{path}")
        super().__setattr__(name, value)
        self._warn_unregistered(name, value)

    if not TYPE_CHECKING:  # with it, mypy would accept every name

        def __getattr__(self, name: str) -> Any:
            raise attribute_error(type(self).__name__, name, "modules", self)

    def _child_path(self, name: str) -> str:
        """Return the path of a child from the nearest module that is called."""
        return name

    def _set_name(self, name: str) -> None:
        self._name = name

    def _warn_unregistered(self, name: str, value: Any) -> None:
        parts = _contained(value)
        if not parts or name in self._warned:
            return
        registered = {id(x) for x in (*self.modules(), *_values(self._state()))}
        part = next((x for x in parts if id(x) not in registered), None)
        if part is None:
            return
        super().__setattr__("_warned", self._warned | {name})
        container = type(value).__name__
        kind, advice = "parameters", "assign each to an attribute"
        if isinstance(part, Module):
            kind = "modules"
            advice = f"use nn.{'ModuleDict' if isinstance(value, dict) else 'ModuleList'}"
        warn_once(
            f"{type(self).__name__}.{name} is a {container} of {kind}, which are not registered: "
            f"they are not trained, saved, or switched to evaluation; {advice} {here()}"
        )

    def _warn_arrays(self, args: list[Any]) -> None:
        """Warn, once for each line, of a call with arrays of floats and no expression."""
        floats = any("float" in str(getattr(x, "dtype", "")) for x in args)
        if floats and not any(isinstance(x, Node) for x in args):
            warn_once(
                f"{type(self).__name__} was called with arrays only, so its result is an "
                'expression without inputs, not an array: x = mg.input("x", shape), and '
                f"mg.comp_graph().compile([x], module(x)) gives a function of arrays {here()}",
                cause=f"arrays {here()._replace(layer='')}",  # not again for the call's layers
            )

    def __getstate__(self) -> dict[str, Any]:
        self._check_depth()
        # A copy has no graph, because copying one could reach the recursion limit.
        return {name: value for name, value in vars(self).items() if name != "_calls"}

    # Children, parameters and buffers: each once, except in `state_dict`, under all its names.

    def children(self) -> Iterator[Module]:
        """Iterate over the modules that are attributes of this one."""
        return _values(self.named_children())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        return _distinct(self._children())

    def modules(self) -> Iterator[Module]:
        """Iterate over this module and all below it, parents first."""
        return _values(self.named_modules())

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        return _distinct(self._tree())

    def parameters(self) -> Iterator[Parameter]:
        """Iterate over the parameters of the module and its submodules, `trainable` or not."""
        return _values(self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        return _distinct((n, p) for n, p in self._state() if not isinstance(p, ModuleState))

    def buffers(self) -> Iterator[ModuleState]:
        """Iterate over state that is not trained, of the module and its submodules."""
        return _values(self.named_buffers())

    def named_buffers(self) -> Iterator[tuple[str, ModuleState]]:
        return _distinct((n, p) for n, p in self._state() if isinstance(p, ModuleState))

    def _children(self) -> list[tuple[str, Module]]:
        return [(name, part) for name, part in vars(self).items() if isinstance(part, Module)]

    def _tree(self, path: str = "", depth: int = 0) -> Iterator[tuple[str, Module]]:
        if depth > MAX_DEPTH:
            raise GraphError(
                f"{type(self).__name__}: modules are nested more than {MAX_DEPTH} deep"
            )
        yield path, self
        for name, child in self._children():
            yield from child._tree(f"{path}.{name}" if path else name, depth + 1)

    def _check_depth(self) -> None:
        """Raise GraphError if the modules contain each other, or are nested too deep."""
        for _ in self._tree():
            pass

    def _state(self) -> Iterator[tuple[str, Parameter]]:
        """Iterate over parameters and buffers in torch's order."""
        for path, module in self._tree():
            named = [(name, p) for name, p in vars(module).items() if isinstance(p, Parameter)]
            for name, p in sorted(named, key=lambda item: isinstance(item[1], ModuleState)):
                yield f"{path}.{name}" if path else name, p

    def state_dict(self) -> dict[str, Array]:
        """Return copies of the values of parameters and buffers, by torch's names.

        All are from the same moment: steps in other threads come before or after.
        """
        return values_of(dict(self._state()))

    @checked
    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Incompatible:
        """Set parameters and buffers from arrays, torch tensors or anything with `__array__`.

        Returns the names that `state` lacks and those that the module lacks, which are errors if
        `strict`; a BatchNorm's `num_batches_tracked` may be missing.  Raises GraphError
        (ShapeError, DTypeError) with up to ten misfits, and then sets nothing.
        """
        name = f"{type(self).__name__}.load_state_dict"
        return restore(name, dict(self._state()), state, strict)

    @checked
    def get_submodule(self, target: str) -> Module:
        """Return the module at a path such as "layer1.0" ("": this module); GraphError if none."""
        for path, module in self._tree():
            if path == target:
                return module
        paths = first_names([repr(path) for path, _ in self._tree() if path], 8) or "none"
        raise GraphError(f"{type(self).__name__} has no module at {target!r}; it has {paths}")

    @checked
    def register_buffer(self, name: Name, value: Any) -> None:
        """Set the attribute `name` to state that is not trained, with this value, or to None."""
        state = value if value is None or isinstance(value, ModuleState) else ModuleState(value)
        setattr(self, name, state)

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` on each module below this one, then on this one, which is returned."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # Training.

    @checked
    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether optimizers train the parameters of the module and its submodules."""
        for parameter in self.parameters():
            parameter.trainable = requires_grad
        return self

    @checked
    def train(self, mode: bool = True) -> Self:
        """Switch later calls to training, or, with False, to evaluation."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Switch later calls to evaluation."""
        return self.train(False)

    def updates(self) -> dict[Parameter, Node]:
        """Return the new values of the state that calls since the last `updates()` change.

        These are the running statistics of BatchNorm layers that were called in training, by
        parameter, for `compile(..., updates={**optimizer.minimize(loss), **net.updates()})`.

        * Several calls before `updates()` belong to one graph: each updates the statistics in turn.
        * Without a call in between, `updates()` returns the same again, so one graph can be
          compiled several times.
        * The first call after `updates()` begins a new graph and forgets the old one.  So compile
          each graph before you build the next.  After a call in evaluation the result is empty.
        * A call that raises an error does not count.
        """
        modules = list(self.modules())
        if any(module._calls.last > self._last_query for module in modules):
            for module in modules:
                if module._calls.last < self._last_query:  # its updates are of the last graph
                    module._calls = _Calls(module._calls.last, {})
        now = next(_clock)
        for module in modules:
            module._last_query = now
        return {p: value for module in modules for p, value in module._calls.updates.items()}

    def _mark_changes(self, result: Any, before: Mapping[Parameter, Node]) -> None:
        """Mark the results of a call with the state that it changes, for `compile`'s warning."""
        after = self._calls.updates
        state = tuple(p for p in after if after[p] is not before.get(p))
        if state:
            changes = Changes(state, tuple(self.parameters()))
            for y in result if isinstance(result, tuple | list) else [result]:
                if isinstance(y, Node) and y.inputs:
                    y.changes += (changes,)

    def update(self, parameter: Parameter, value: Node) -> None:
        """Record, in `forward`, that a call changes `parameter` to `value`."""
        updates = {**self._calls.updates, parameter: value}
        self._calls = self._calls._replace(updates=updates)

    def updated(self, parameter: Parameter) -> Node:
        """Return the value that `parameter` has after the calls so far."""
        return self._calls.updates.get(parameter, parameter)

    # Printing.

    def extra_repr(self) -> str:
        """Return the module's arguments for `repr`."""
        return self._repr_format.format(**vars(self))

    def _child_reprs(self) -> list[tuple[str, str]]:
        return [(name, repr(child)) for name, child in self._children()]

    def __repr__(self) -> str:
        self._check_depth()
        extra = self.extra_repr()
        lines = [f"({name}): {child}" for name, child in self._child_reprs()]
        if not lines:
            return f"{type(self).__name__}({extra})"
        body = textwrap.indent("\n".join(filter(None, [extra, *lines])), "  ")
        return f"{type(self).__name__}(\n{body}\n)"


def _distinct(named: Iterable[tuple[str, T]]) -> Iterator[tuple[str, T]]:
    ids: set[int] = set()
    for name, value in named:
        if id(value) not in ids:
            ids.add(id(value))
            yield name, value


def _contained(value: Any) -> list[Any]:
    """Return the modules and parameters in a list, tuple or dict, and in lists and tuples in it."""
    if not isinstance(value, list | tuple | dict):
        return []
    items = value.values() if isinstance(value, dict) else value
    flat = (x if isinstance(x, list | tuple) else (x,) for x in items)
    return [x for x in itertools.chain.from_iterable(flat) if isinstance(x, Module | Parameter)]


def _values(named: Iterable[tuple[str, T]]) -> Iterator[T]:
    return (value for _, value in named)

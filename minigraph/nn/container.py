"""Modules that hold other modules: in sequence, as a list, by name; as in `torch.nn`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from itertools import count, groupby
from typing import Any, Self, overload

from minigraph.arguments import short_repr
from minigraph.errors import GraphError
from minigraph.nn.module import Module


class Container(Module):
    """A module whose attributes that are modules are its contents."""

    def _set_child(self, name: str, module: Any) -> None:
        if not isinstance(module, Module):
            text = f"{type(self).__name__} takes modules"
            if isinstance(module, type) and issubclass(module, Module):
                raise GraphError(f"{text}; {module.__name__} ({name}) is a class: call it")
            raise GraphError(f"{text}, not {type(module).__name__} ({name})")
        setattr(self, name, module)

    def __len__(self) -> int:
        return len(self._children())


class NamespaceContainer(Container):
    """A container that is not called, so the paths of its modules begin with its own path."""

    def _child_path(self, name: str) -> str:
        return f"{self._name}.{name}" if self._name else name

    def _set_name(self, name: str) -> None:
        super()._set_name(name)
        for key, child in self._children():
            child._set_name(self._child_path(key))


class ListContainer(Container):
    """A container with the interface of a list; its modules are named "0", "1", ..."""

    def __iter__(self) -> Iterator[Module]:
        return iter([module for _, module in self._children()])

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return a module, or for a slice a container of the same modules."""
        if isinstance(index, slice):
            return self._part(self._children()[index])
        return self._children()[index][1]

    def _part(self, children: Iterable[tuple[str, Module]]) -> Any:
        """Return a container of some of the modules, which keep their paths."""
        part = Sequential() if isinstance(self, Sequential) else ModuleList()
        vars(part).update(children, _name=self._name)
        return part

    def __setitem__(self, index: int, module: Module) -> None:
        self._set_child(self._children()[index][0], module)

    def __delitem__(self, index: int | slice) -> None:
        modules = list(self)
        del modules[index]
        self._renumber(modules)

    def append(self, module: Module) -> Self:
        """Add a module at the end; return the container."""
        names = dict(self._children())  # a slice of a Sequential keeps its numbers
        self._set_child(next(n for n in map(str, count(len(self))) if n not in names), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end; return the container."""
        for module in _as_list(self, modules):
            self.append(module)
        return self

    __iadd__ = extend

    def insert(self, index: int, module: Module) -> Self:
        """Insert a module before the one at `index`; return the container."""
        modules = list(self)
        self.append(module)  # raises its errors before the list changes
        modules.insert(index, module)
        self._renumber(modules)
        return self

    def pop(self, index: int) -> Module:
        """Remove the module at `index` and return it."""
        _, module = self._children()[index]
        del self[index]
        return module

    def _renumber(self, modules: list[Module]) -> None:
        for name, child in self._children():
            for path, parameter in child._state():
                if parameter.name == f"{self._child_path(name)}.{path}":
                    parameter.rename(path)  # `_set_child` prefixes the new path
            delattr(self, name)
        for i, module in enumerate(modules):
            self._set_child(str(i), module)


class Sequential(ListContainer):
    """Modules called one after the other, each on the result of the one before.

    modules  modules, which are named "0", "1", ..., or one mapping of names to modules

    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> net(mg.input("x", (4, 8))).shape
    (4, 2)
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        first = modules[0] if len(modules) == 1 else None
        is_named = isinstance(first, Mapping) and not isinstance(first, Module)
        named: Any = first if is_named else {str(i): module for i, module in enumerate(modules)}
        for name, module in named.items():
            self._set_child(name, module)

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x


class ModuleList(ListContainer, NamespaceContainer):
    """A list of modules, which belong to the module whose attribute it is.

    modules  an iterable of modules

    >>> from minigraph import nn
    >>> layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    >>> layers.append(nn.ReLU())
    ModuleList(
      (0-1): 2 x Linear(in_features=4, out_features=4, bias=True)
      (2): ReLU()
    )
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def _part(self, children: Iterable[tuple[str, Module]]) -> Any:
        return super()._part((str(i), module) for i, (_, module) in enumerate(children))

    def __add__(self, modules: Iterable[Module]) -> ModuleList:
        """Return a ModuleList of these modules, followed by others."""
        return self._part([*self._children(), *(("", x) for x in _as_list(self, modules))])

    def _child_reprs(self) -> list[tuple[str, str]]:
        grouped = []
        for text, run in groupby(super()._child_reprs(), key=lambda child: child[1]):
            names = [name for name, _ in run]
            group = (f"{names[0]}-{names[-1]}", f"{len(names)} x {text}")
            grouped.append(group if names[1:] else (names[0], text))
        return grouped


class ModuleDict(NamespaceContainer, MutableMapping[str, Module]):
    """Submodules by name.

    modules  a mapping of names to modules, or an iterable of pairs

    A name is a string without dots that no attribute has, such as "keys".

    >>> heads = nn.ModuleDict({"digit": nn.Linear(8, 10), "colour": nn.Linear(8, 3)})
    >>> heads["colour"](mg.input("x", (4, 8))).shape
    (4, 3)
    """

    def __init__(self, modules: Mapping[str, Module] | Iterable[Any] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    __eq__, __hash__ = object.__eq__, object.__hash__  # modules compare by identity

    def __getitem__(self, name: str) -> Module:
        return dict(self._children())[name]

    def __setitem__(self, name: str, module: Module) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise GraphError(f"ModuleDict: a name is a string without dots, not {short_repr(name)}")
        if name not in self and hasattr(self, name):
            raise GraphError(f"ModuleDict: {name!r} is an attribute's name; use another one")
        self._set_child(name, module)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        delattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, _ in self._children()])

    def update(self, modules: Mapping[str, Module] | Iterable[Any]) -> None:  # type: ignore[override]
        """Set the modules of a mapping, or of an iterable of pairs of name and module."""
        named = modules.items() if isinstance(modules, Mapping) else modules
        for pair in _as_list(self, named):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise GraphError(
                    f"ModuleDict takes pairs of name and module, not {short_repr(pair)}"
                )
            self[pair[0]] = pair[1]


def _as_list(container: Module, values: Any) -> list[Any]:
    try:
        return list(values)
    except TypeError:
        text = f"{type(container).__name__} takes an iterable, not {type(values).__name__}"
        raise GraphError(text) from None

"""Layers that hold arguments of a function of `minigraph.ops` and call it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, TypeVar, cast, dataclass_transform

from minigraph.arguments import PLAIN, checked
from minigraph.graph import Node, Parameter
from minigraph.nn.module import Module

ModuleT = TypeVar("ModuleT", bound=type[Module])
Flag = Annotated[Any, PLAIN[bool]]  # whether to have a bias: `put_bias` puts it in its place


@dataclass_transform(eq_default=False)
def layer_of(function: Callable[..., Node] | None = None) -> Callable[[ModuleT], ModuleT]:
    """Return a decorator that makes a class's fields the arguments of its `__init__`, checked.

    function  what a `FunctionLayer` calls
    """

    def decorate(cls: ModuleT) -> ModuleT:
        if function is not None:
            cls.function = staticmethod(function)  # type: ignore[attr-defined]
        return cast(ModuleT, checked(dataclass(eq=False, repr=False)(cls)))

    return decorate


def put_bias(layer: Any, bias: Parameter | None) -> None:
    """Set the bias of a layer in place of the flag that asked for one, behind its weight."""
    vars(layer).pop("bias", None)
    layer.bias = bias


class FunctionLayer(Module):
    """A layer that passes its input and its fields to a function.

    `inplace` is a field for torch's sake and is not passed: where results lie in memory is the
    compiler's work.
    """

    function: ClassVar[Callable[..., Node]]

    def forward(self, x: Any) -> Node:
        return self.function(x, **self._arguments())

    def _arguments(self) -> dict[str, Any]:
        names = (field.name for field in fields(self) if field.name != "inplace")  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names}

    def extra_repr(self) -> str:
        if self._repr_format:
            return super().extra_repr()
        shown = [f"{name}={value!r}" for name, value in self._arguments().items()]
        return ", ".join(shown + ["inplace=True"] * getattr(self, "inplace", False))

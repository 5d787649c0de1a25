"""Layers that hold arguments for a function of `minigraph.ops` and call it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, TypeVar, cast, dataclass_transform

from minigraph.arguments import KIND_OF_TYPE, checked
from minigraph.graph import Node, Parameter
from minigraph.nn.module import Module

ModuleT = TypeVar("ModuleT", bound=type[Module])
# Fields for compatibility with torch, which are not passed to functions, with their documentation.
IGNORED_ARGUMENTS = {
    "inplace": "has no effect: the compiler decides where results are in memory",
    "dilation": "exists for torch's order of arguments; only 1 is supported",
    "return_indices": "exists for torch's order of arguments; only False is supported",
}
Flag = Annotated[Any, KIND_OF_TYPE[bool]]  # whether to have a bias; `set_bias` replaces the flag


@dataclass_transform(eq_default=False)
def layer_of(function: Callable[..., Node] | None = None) -> Callable[[ModuleT], ModuleT]:
    """Return a decorator that makes a class's fields the checked arguments of its `__init__`.

    function  what a `FunctionLayer` calls; a class without a docstring gets that of the function
    """

    def decorate(cls: ModuleT) -> ModuleT:
        has_docstring = cls.__doc__
        layer = dataclass(eq=False, repr=False)(cls)  # adds a docstring of the fields
        if function is not None:
            layer.function = staticmethod(function)  # type: ignore[attr-defined]
            if function.__doc__ and not has_docstring:  # Python's option -OO removes docstrings
                layer.__doc__ = _docstring(layer, function)
        return cast(ModuleT, checked(layer))

    return decorate


def _docstring(layer: Any, function: Any) -> str:
    """Return the docstring of a function for a layer, with an example that calls the layer."""
    text = inspect.cleandoc(function.__doc__).removeprefix("Return ")
    text = re.sub(r"^(an?|the)\b", lambda word: word[0].capitalize(), text)
    name = f"ops.{function.__name__}"
    (line,) = (line for line in text.splitlines() if f"{name}(" in line)
    example = line.removeprefix(">>> ")
    calls = (node for node in ast.walk(ast.parse(example)) if isinstance(node, ast.Call))
    call = next(node for node in calls if ast.unparse(node.func) == name)
    nodes = (call, *call.args, *call.keywords)
    old, *texts = (ast.get_source_segment(example, node) or "" for node in nodes)
    operands, arguments = texts[: layer.operands], texts[layer.operands :]
    new = f"nn.{layer.__name__}({', '.join(arguments)})({', '.join(operands)})"
    about, prompt, examples = text.replace(old, new).partition(">>> ")
    longest = max(map(len, IGNORED_ARGUMENTS))
    unused = [f.name for f in fields(layer) if f.name in IGNORED_ARGUMENTS]
    lines = "\n".join(f"{field:{longest}}  {IGNORED_ARGUMENTS[field]}" for field in unused)
    return "\n\n".join(filter(None, [about.rstrip(), lines, prompt + examples]))


def set_bias(layer: Any, bias: Parameter | None) -> None:
    """Replace a layer's flag `bias` by its bias, which follows the weight in the layer's state."""
    vars(layer).pop("bias", None)
    layer.bias = bias


class FunctionLayer(Module):
    """A layer that passes its input and its fields, except IGNORED_ARGUMENTS, to a function.

    operands  number of the function's arguments that are expressions
    """

    function: ClassVar[Callable[..., Node]]
    operands: ClassVar[int] = 1

    def forward(self, x: Any) -> Node:
        return self.function(x, *self._arguments().values())

    def _arguments(self) -> dict[str, Any]:
        names = (f.name for f in fields(self) if f.name not in IGNORED_ARGUMENTS)  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names}

    def extra_repr(self) -> str:
        if self._repr_format:
            return super().extra_repr()
        arguments = [f"{name}={value!r}" for name, value in self._arguments().items()]
        return ", ".join(arguments + ["inplace=True"] * getattr(self, "inplace", False))

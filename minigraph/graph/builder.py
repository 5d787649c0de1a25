"""Builders: functions of arguments that are checked, which make expressions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from minigraph.arguments import Signature
from minigraph.errors import GraphError, located
from minigraph.graph.location import here, is_recursive_call
from minigraph.graph.node import Node, Op

P = ParamSpec("P")
R = TypeVar("R")


def builder(fn: Callable[P, R]) -> Callable[P, R]:
    """Return a function that builds nodes and checks its arguments by its signature.

    An error names the outermost builder, which the user called, its operands and the user's line.
    """
    signature = Signature(fn)

    @functools.wraps(fn)
    def build(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            positional, named = signature.parse(args, kwargs)
            return fn(*positional, **named)
        except (GraphError, MemoryError) as error:
            if is_recursive_call():  # all builders share this code
                raise
            given = (*args, *kwargs.values())
            items = (
                x for each in given for x in (each if isinstance(each, list | tuple) else [each])
            )
            operands = [x for x in items if isinstance(x, Node)]
            if isinstance(error, GraphError):
                raise located(error, fn.__name__, operands, here()) from None
            text = GraphError(f"the memory does not suffice ({error})")
            raise located(text, fn.__name__, operands, here()) from error

    return build


def function_of(op: type[Op], build: Callable[..., Node]) -> Callable[..., Node]:
    """Return `build` as the function that users know by the name of `op`, with its docstring.

    The op's example, if there is one, ends the docstring.
    """
    arguments, result = op.example
    if result:
        call = f"cg.compile([], ops.{op.name}({arguments}))()"
        op.__doc__ = f"{inspect.cleandoc(op.__doc__ or '')}\n\n>>> {call}\n{result}\n"
    build.__name__ = build.__qualname__ = op.name
    build.__doc__ = op.__doc__
    build.__module__ = op.__module__
    return builder(build)

"""Substitution of numbers for the symbolic sizes of a graph.

The substitution checks all ops: a size or an offset has to be an integer >= 0, and each result has
to have the shape that was inferred when the graph was built.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from minigraph.errors import GraphError, ShapeError, located
from minigraph.graph.graph import Graph
from minigraph.graph.leaves import FromSizes, Input, constant
from minigraph.graph.loop import GraphOp
from minigraph.graph.node import Node, Op
from minigraph.graph.spec import Spec
from minigraph.symbolic import Sizes, SymbolicSize

MAX_SIZE = 1 << 62  # limit of sizes and offsets
VALUE_TYPES = ("float", "tuple[Any, ...]")  # types of fields that hold values, not sizes


def with_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with these numbers for its symbolic sizes.

    Raises ShapeError, with the user's line, for sizes that an op rejects.
    """
    sizes = sizes if isinstance(sizes, Sizes) else Sizes(sizes)  # memoizes
    new = {x: _with_sizes(x, (), sizes) for x in graph.inputs}

    def rewrite(node: Node, inputs: tuple[Node, ...]) -> Node:
        return new[node] if node in new else _with_sizes(node, inputs, sizes)

    rewritten = graph.map(rewrite)
    same = all(x is y for x, y in new.items())
    return rewritten if same else Graph(tuple(new.values()), rewritten.outputs)


def _with_sizes(node: Node, inputs: tuple[Node, ...], sizes: Mapping[str, int]) -> Node:
    """Return `node` with other inputs and with numbers for symbolic sizes."""
    if isinstance(node.op, Input):
        spec = Spec(substitute(node.shape, sizes), node.dtype)
        return node if spec == node.spec else Node(node.op, (), (spec,))
    try:
        negative: list[str] = []
        op = _substitute_fields(node.op, sizes, negative)
        if op is node.op and node.replace(inputs) is node:
            return node
        try:
            specs = op.inferred(inputs)
            if negative:
                raise ShapeError("a size is below 0")
        except GraphError as error:  # the op's error explains a negative size best
            raise type(error)("; ".join((str(error), *negative[:1]))) from None
        for spec, inferred in zip(specs, node.specs, strict=True):
            shape = substitute(inferred.shape, sizes)
            if spec.shape != shape:
                raise ShapeError(
                    f"the result has shape {spec.shape}, but {shape} was inferred when the graph "
                    "was built: a symbolic size that is 1 does not broadcast"
                )
        if isinstance(op, FromSizes):
            return constant(op.forward())
    except GraphError as error:
        name = node.op.of if isinstance(node.op, FromSizes) else node.op.name
        raise located(error, name, inputs, node.source) from None
    return Node(op, inputs, specs)


def _substitute_fields(op: Op, sizes: Mapping[str, int], negative: list[str]) -> Op:
    """Return `op` with numbers for symbolic sizes; ShapeError if one is not an integer.

    negative  receives an error text for each size below 0
    """

    def integer(size: SymbolicSize, sizes: Mapping[str, int]) -> int:
        number = size.at(sizes)
        if type(number) is not int or abs(number) > MAX_SIZE:
            limit = f"a size is an integer up to {MAX_SIZE}"
            raise ShapeError(f"{size} is {number:g} {size.where(sizes)}; {limit}")
        if number < 0:
            negative.append(f"{size} is {number} {size.where(sizes)}")
        return number

    changed: dict[str, Any] = {}
    for field in fields(op):  # type: ignore[arg-type]
        value = getattr(op, field.name)
        number = SymbolicSize.at if field.type in VALUE_TYPES else integer
        if (new := substitute(value, sizes, number)) is not value:
            changed[field.name] = new
    if isinstance(op, GraphOp) and (graph := with_sizes(op.graph, sizes)) is not op.graph:
        changed["graph"] = graph
    return replace(op, **changed) if changed else op  # type: ignore[type-var]


def substitute(
    value: Any,
    sizes: Mapping[str, int],
    number: Callable[[SymbolicSize, Mapping[str, int]], Any] = SymbolicSize.at,
) -> Any:
    """Return a field of an op (a size, a tuple or a dataclass) with numbers for its symbolic sizes.

    number  computes the number of a size
    """
    if isinstance(value, SymbolicSize):
        return number(value, sizes)
    if type(value) is tuple:
        items = tuple(substitute(each, sizes, number) for each in value)
        return value if all(map(operator.is_, items, value)) else items
    if is_dataclass(value) and not isinstance(value, type):
        old = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        new = {name: substitute(each, sizes, number) for name, each in old.items()}
        changed = {name: each for name, each in new.items() if each is not old[name]}
        return replace(value, **changed) if changed else value
    return value

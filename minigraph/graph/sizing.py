"""Numbers for the symbolic sizes of a graph.

The numbers are checked here, for all ops: a size or an offset is an integer >= 0, and each result
has the shape that was foreseen when the graph was built.
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

LARGEST = 1 << 62  # of a size and an offset that a call gives
NUMBERS = ("float", "tuple[Any, ...]")


def with_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph for these values of its symbolic sizes.

    Raises ShapeError, with the user's line, for sizes that some op cannot have.
    """
    sizes = sizes if isinstance(sizes, Sizes) else Sizes(sizes)  # which remembers
    new = {x: _with_sizes(x, (), sizes) for x in graph.inputs}

    def known(node: Node, inputs: tuple[Node, ...]) -> Node:
        return new[node] if node in new else _with_sizes(node, inputs, sizes)

    known_sizes = graph.map(known)
    same = all(x is y for x, y in new.items())
    return known_sizes if same else Graph(tuple(new.values()), known_sizes.outputs)


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
        except GraphError as error:  # which says best what the size is for
            raise type(error)("; ".join((str(error), *negative[:1]))) from None
        for spec, foreseen in zip(specs, node.specs, strict=True):
            shape = substitute(foreseen.shape, sizes)
            if spec.shape != shape:
                raise ShapeError(
                    f"the result has shape {spec.shape}, where {shape} was foreseen when the graph "
                    "was built: a size that calls give does not broadcast where it is 1"
                )
        if isinstance(op, FromSizes):
            return constant(op.forward())
    except GraphError as error:
        what = node.op.of if isinstance(node.op, FromSizes) else node.op.name
        raise located(error, what, inputs, node.source) from None
    return Node(op, inputs, specs)


def _substitute_fields(op: Op, sizes: Mapping[str, int], negative: list[str]) -> Op:
    """Return `op` with numbers for symbolic sizes; ShapeError where one is no integer.

    negative  receives a sentence for each size below 0
    """

    def whole(size: SymbolicSize, sizes: Mapping[str, int]) -> int:
        number = size.at(sizes)
        if type(number) is not int or abs(number) > LARGEST:
            wanted = f"a size is an integer up to {LARGEST}"
            raise ShapeError(f"{size} is {number:g} {size.where(sizes)}; {wanted}")
        if number < 0:
            negative.append(f"{size} is {number} {size.where(sizes)}")
        return number

    changed: dict[str, Any] = {}
    for field in fields(op):  # type: ignore[arg-type]
        value = getattr(op, field.name)
        # A field of another type is a size; one of these is a value, or what a value is made of.
        number = SymbolicSize.at if field.type in NUMBERS else whole
        if (new := substitute(value, sizes, number)) is not value:
            changed[field.name] = new
    if isinstance(op, GraphOp) and (inside := with_sizes(op.graph, sizes)) is not op.graph:
        changed["graph"] = inside
    return replace(op, **changed) if changed else op  # type: ignore[type-var]


def substitute(
    value: Any,
    sizes: Mapping[str, int],
    number: Callable[[SymbolicSize, Mapping[str, int]], Any] = SymbolicSize.at,
) -> Any:
    """Return a field of an op (a size, or a tuple or record with sizes) with numbers for its sizes.

    number  computes the number of a size
    """
    if isinstance(value, SymbolicSize):
        return number(value, sizes)
    if type(value) is tuple:
        made = tuple(substitute(each, sizes, number) for each in value)
        return value if all(map(operator.is_, made, value)) else made
    if is_dataclass(value) and not isinstance(value, type):
        given = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        new = {name: substitute(each, sizes, number) for name, each in given.items()}
        changed = {name: each for name, each in new.items() if each is not given[name]}
        return replace(value, **changed) if changed else value
    return value

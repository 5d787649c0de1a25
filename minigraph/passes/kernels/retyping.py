"""Kernels that are made anew: with operands of other types, and results in other types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minigraph.graph import DType, Graph, Item, Node, placeholders
from minigraph.jit.fused import Fused, meaning
from minigraph.jit.product import FusedProduct
from minigraph.ops.elementwise import Astype, Elementwise, astype, kind
from minigraph.ops.reduction import Reduction


def is_generated(node: Node) -> bool:
    """Whether the kernel of a node is generated, so that it can read and write other types."""
    if isinstance(node.op, Reduction):
        return bool(node.op.combine)
    return isinstance(node.op, Fused | Elementwise) and not isinstance(node.op, FusedProduct)


def items_of(node: Node, users: Mapping[Node, Sequence[Node]]) -> list[Node | None]:
    """Return the nodes that stand for the results of a node; None for one that is not read."""
    if not node.is_bundle:
        return [node]
    items = {x.op.index: x for x in users[node] if isinstance(x.op, Item)}
    return [items.get(i) for i in range(len(node.specs))]


def graph_of(node: Node) -> Graph:
    """Return the graph that the kernel of a node computes."""
    return meaning(node.op, [x.spec for x in node.inputs])


def retyped(
    inner: Graph, inputs: Sequence[Node], wanted: Sequence[tuple[Node, DType]]
) -> list[Node]:
    """Return the results of one kernel that computes what the graph `inner` does.

    inputs  what it reads; where a type is another one than in `inner`, the kernel casts
    wanted  what it stores: nodes of `inner`, inputs too, each with a type
    """
    given = placeholders([x.spec for x in inputs])
    there = {old: new.astype(old.dtype) for old, new in zip(inner.inputs, given, strict=True)}
    values = Graph(inner.inputs, tuple(y for y, _ in wanted))
    made = values.map(lambda x, xs: there[x] if x in there else x.replace(xs)).outputs
    casts = {(y.inputs[0], y.dtype): y for y in made if isinstance(y.op, Astype)}
    # What is widened and then wanted as it was needs no kernel.
    lying = dict(zip(given, inputs, strict=True))
    same = {y: lying[x] for (x, _), y in casts.items() if x in lying and _widens(x, y)}
    dtypes = [dtype for _, dtype in wanted]
    if dtypes == [same[y].dtype if y in same else None for y in made]:
        return [same[y] for y in made]
    stored = [
        y if y.dtype == dtype else casts.setdefault((y, dtype), astype(y, dtype))
        for y, (_, dtype) in zip(made, wanted, strict=True)
    ]
    outputs = tuple(dict.fromkeys(stored))
    results = Fused(Graph(given, outputs)).results(*inputs)
    by_value = dict(zip(outputs, results, strict=True))
    return [by_value[y] for y in stored]


def _widens(x: Node, y: Node) -> bool:
    """Whether a cast from one float to the other loses nothing."""
    return kind(x.dtype) == kind(y.dtype) == "f" and x.dtype.itemsize < y.dtype.itemsize

"""Graphs: the nodes that some outputs depend on; rebuilding, checking, evaluating, pickling them.

Nodes are immutable and a graph keeps no list of them, so a pass is a function from graph to graph,
and a node that no output depends on is not part of the graph.
"""

from __future__ import annotations

import copyreg
import functools
import heapq
import operator
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from minigraph.errors import GraphError, ShapeError, located
from minigraph.graph.leaves import Input, Parameter, namesake
from minigraph.graph.location import Within, scope
from minigraph.graph.node import Item, Node, Op
from minigraph.graph.spec import Array, Spec, can_cast

Application = tuple[int, ...]


def application(node: Node) -> Application:
    """Return a key of a node's op, specs and input specs: their ids, valid while the node lives."""
    return (id(node.op), id(node.specs), *[id(x.specs) for x in node.inputs])


@dataclass(frozen=True, eq=False)
class Graph:
    """A function from values of `inputs` to values of `outputs`."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]

    def __iter__(self) -> Iterator[Node]:
        """Yield every node once, inputs before their users."""
        return iter(self.order)

    @functools.cached_property
    def order(self) -> tuple[Node, ...]:
        return tuple(toposort(self.outputs))

    @functools.cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters that the graph reads, in the order of their first use."""
        return tuple(node for node in self if isinstance(node, Parameter))

    @functools.cached_property
    def kinds(self) -> frozenset[type[Op]]:
        return frozenset(type(node.op) for node in self)

    def map(
        self,
        fn: Callable[[Node, tuple[Node, ...]], Node],
        reads: Mapping[Node, tuple[Node, ...]] = MappingProxyType({}),
    ) -> Graph:
        """Return the graph rebuilt bottom-up, with `fn(node, new_inputs)` in place of each node.

        reads  for some nodes, the nodes whose replacements `fn` gets as `new_inputs`
        """
        new: dict[Node, Node] = {}
        with Within(source=scope.source, order=scope.order):
            for node in toposort(self.outputs, reads) if reads else self:
                inputs = reads.get(node, node.inputs) if reads else node.inputs
                scope.source, scope.order = node.source, node.order[0]
                new[node] = fn(node, tuple(map(new.__getitem__, inputs)))
        outputs = tuple(new[y] for y in self.outputs)
        same = all(map(operator.is_, outputs, self.outputs))
        return self if same else Graph(self.inputs, outputs)

    def substitute(self, results: Mapping[Node, Sequence[Node]]) -> Graph:
        """Return the graph with the results of some nodes replaced.

        results  for each replaced node its new results: one for an ordinary node, one for each item
                 of a bundle.  They read nodes of this graph, replaced ones included.
        """
        new: dict[Node, tuple[Node, ...]] = {}
        for node in self:
            if node in results and not node.is_bundle:
                new[node] = tuple(results[node])
            elif isinstance(node.op, Item) and node.inputs[0] in results:
                new[node] = (results[node.inputs[0]][node.op.index],)
        try:
            return self.map(lambda x, inputs: inputs[0] if x in new else x.replace(inputs), new)
        except KeyError as error:
            text = f"substitute: {error} depends on the node that it replaces; use `map` for that"
            raise GraphError(text) from None

    def replace_nodes(self, replacements: Mapping[Node, Node]) -> Graph:
        """Return the graph with other nodes, which are not rebuilt, in place of some nodes."""
        return self.map(
            lambda x, inputs: replacements[x] if x in replacements else x.replace(inputs),
            reads=dict.fromkeys(replacements, ()),
        )

    def by_order(self, deferred: AbstractSet[Node] = frozenset()) -> list[Node]:
        """Return the nodes, inputs before users, by `Node.order`; those in `deferred` come last."""
        users = self.users()
        pending = {node: len(set(node.inputs)) for node in self}
        order: list[Node] = []
        ready = [(x in deferred, x.order, x) for x in self if not pending[x]]  # `order` is unique
        heapq.heapify(ready)
        while ready:
            order.append(heapq.heappop(ready)[-1])
            for user in dict.fromkeys(users[order[-1]]):
                pending[user] -= 1
                if not pending[user]:
                    heapq.heappush(ready, (user in deferred, user.order, user))
        return order

    def users(self) -> dict[Node, list[Node]]:
        table: dict[Node, list[Node]] = {node: [] for node in self}
        for node in self:
            for x in node.inputs:
                table[x].append(node)
        return table

    def check(self, verified: set[Application] | None = None, exempt: Iterable[Node] = ()) -> None:
        """Raise GraphError for a spec other than the inferred one, or for an undeclared input.

        verified  applications that were checked before; those of this graph are added
        exempt    nodes that need no check: those of a checked graph with the same inputs
        """
        declared = set(self.inputs)
        verified = set() if verified is None else verified
        exempt = set(exempt)
        for node in self:
            if node in exempt:
                continue
            key = application(node)
            if isinstance(node.op, Input):
                if node not in declared:
                    raise GraphError(
                        f"an output depends on input {node.name} ({node.spec}, made "
                        f"{node.source}), which is not among the inputs; "
                        + (namesake(node, self.inputs) or "add it to `inputs`")
                    )
            elif key not in verified and not isinstance(node, Parameter):
                specs = node.op.inferred(node.inputs)
                if specs != node.specs:
                    inferred = ", ".join(map(str, specs))
                    raise GraphError(f"{node!r} {node.source}: the op infers {inferred}")
            verified.add(key)

    def __call__(self, *args: Array) -> tuple[Array, ...]:
        """Evaluate with NumPy, one op at a time: slow, and the reference for all devices."""
        return self.evaluate(args, compute)

    def evaluate(self, args: Sequence[Array], compute: Callable[..., Any]) -> tuple[Any, ...]:
        """Return the outputs, with each node computed by `compute(node, *inputs)`.

        A value is released after its last use.
        """
        if len(args) != len(self.inputs):
            raise GraphError(f"values for {len(self.inputs)} inputs are needed, not {len(args)}")
        values: dict[Node, Any] = dict(zip(self.inputs, args, strict=True))
        reads = Counter((*self.outputs, *(x for node in self for x in node.inputs)))
        with np.errstate(all="ignore"):
            for node in self:
                if node not in values:
                    values[node] = compute(node, *(values[x] for x in node.inputs))
                for x in node.inputs:
                    reads[x] -= 1
                    if not reads[x]:
                        del values[x]
        return tuple(values[y] for y in self.outputs)

    def __str__(self) -> str:
        names: dict[Node, str] = {x: x.name for x in self.inputs}
        lines: list[str] = []
        inputs = ", ".join(f"{x.name}: {x.spec}" for x in self.inputs)
        for node in self:
            if node not in names:
                names[node] = f"%{len(lines)}"
                args = " ".join(names[x] for x in node.inputs)
                specs = ", ".join(map(str, node.specs))
                lines.append(f"  {names[node]}: {specs} = {node.op} {args}".rstrip())
        outputs = ", ".join(names[y] for y in self.outputs)
        return "\n".join([f"graph({inputs}):", *lines, f"  return {outputs}"])


def compute(node: Node, *args: Any) -> Any:
    """Evaluate `node` with NumPy; a GraphError names the user's line that made the node."""
    if isinstance(node, Parameter):
        return node.state.read()
    try:
        result = node.op.forward(*args)
        arrays = tuple(map(np.asarray, result if node.is_bundle else (result,)))
        if len(arrays) != len(node.specs) or any(
            y.shape != spec.shape or not can_cast(y.dtype, spec.dtype)
            for y, spec in zip(arrays, node.specs, strict=True)
        ):
            returned = ", ".join(str(Spec(y.shape, y.dtype)) for y in arrays)
            inferred = ", ".join(map(str, node.specs))
            raise GraphError(f"forward returned {returned}; the op infers {inferred}")
    except GraphError as error:
        operands = [*dict.fromkeys(node.inputs)]  # `ops.check(x)` has x twice
        raise located(error, node.op.name, operands, node.source) from None
    return arrays if node.is_bundle else arrays[0]


def toposort(
    outputs: Sequence[Node], reads: Mapping[Node, Sequence[Node]] = MappingProxyType({})
) -> list[Node]:
    """Return all nodes that `outputs` depend on, each after its inputs, without recursion.

    reads  for some nodes, their dependencies if these are not their inputs
    """
    order: dict[Node, None] = {}
    expanded: set[Node] = set()
    stack = [*reversed(outputs)]
    while stack:
        node = stack[-1]
        if node in expanded:  # its inputs are in `order`
            order.setdefault(stack.pop())
        else:
            expanded.add(node)
            inputs = reads.get(node, node.inputs) if reads else node.inputs
            stack.extend(inputs[::-1])
    return [*order]


def check_rewrite(name: str, old: Graph, new: Any, verified: set[Application]) -> None:
    """Raise GraphError unless the pass `name` returned a sound graph with the results of `old`.

    verified  applications that were checked before, also those of `old`; those of `new` are added
    """
    if not isinstance(new, Graph):
        raise GraphError(f"pass {name}: a pass returns a Graph, not {type(new).__name__}")
    old_specs, new_specs = ([y.specs for y in graph.outputs] for graph in (old, new))
    if old_specs != new_specs:
        raise ShapeError(
            f"pass {name}: the results were {_specs_text(old_specs)} before it and are "
            f"{_specs_text(new_specs)} after it"
        )
    new.check(verified, exempt=old if new.inputs is old.inputs else ())


def _specs_text(results: Sequence[Sequence[object]]) -> str:
    return ", ".join(" ".join(map(str, specs)) for specs in results) or "none"


# ---------------------------------------------------------------- pickling and copying

# `pickle` and `copy.deepcopy` recurse into the attributes of an object, so a deep graph would reach
# the recursion limit.  The first node therefore lists all its dependencies, inputs first: when a
# node's turn comes, its inputs have been copied.


@dataclass(eq=False)
class _Dependencies:
    """The nodes that a node depends on, and the node itself, in the order of their creation.

    The object lives as long as the call of `pickle` or `copy`, whose memo holds these nodes.
    """

    nodes: dict[Node, None]

    def __reduce__(self) -> tuple[Any, ...]:
        *inputs, _ = self.nodes
        return tuple, (inputs,)


_copying = threading.local()


def _reduce(node: Node) -> tuple[Any, ...]:
    """Return the constructor and arguments of a copy, for `pickle` and `copy`."""
    in_progress = vars(_copying).setdefault("dependencies", weakref.WeakSet())
    dependencies = None
    if node.inputs and not any(node in each.nodes for each in in_progress):
        copied: dict[Node, tuple[Node, ...]] = {x: () for each in in_progress for x in each.nodes}
        order = sorted(toposort([node], copied), key=lambda x: x.order[1])
        dependencies = _Dependencies(dict.fromkeys(x for x in order if x not in copied))
        in_progress.add(dependencies)
    attributes = {name: getattr(node, name) for name in ("changes", "descent", "source")}
    return _restore, (dependencies, node.op, node.inputs, node.specs, attributes)


def _restore(_: object, op: Op, inputs: Any, specs: Any, attributes: dict[str, Any]) -> Node:
    """Return a node with these attributes and a new `order`, which has to be unique."""
    node = Node(op, inputs, specs)
    for name, value in attributes.items():
        setattr(node, name, value)
    return node


copyreg.pickle(Node, _reduce)

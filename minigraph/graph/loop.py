"""Ops that hold a graph: composed ops, and loops, which run a graph once for each slice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from minigraph.errors import ShapeError
from minigraph.graph.graph import Graph, toposort
from minigraph.graph.leaves import Constant, Input
from minigraph.graph.node import Node, Op
from minigraph.graph.spec import Array, Spec

# The signature of `minigraph.autodiff.vjp`, which ops may not import: vjp(outputs, their gradients,
# nodes) returns the gradients for the nodes.
VectorJacobian = Callable[[Sequence[Node], Sequence[Node], Sequence[Node]], list[Node]]


def dependents(outputs: Sequence[Node], on: Iterable[Node]) -> set[Node]:
    """Return `on` and the nodes on paths from `on` to `outputs`."""
    reached = set(on)
    for node in toposort(outputs):
        if not reached.isdisjoint(node.inputs):
            reached.add(node)
    return reached


class GraphOp(Op, eq=False):
    """An op that computes a graph.  Two ops are equal if their graphs and other fields are.

    key  by which graphs are compared: the printed graph, its constants, and its ops with graphs
    """

    graph: Graph

    @functools.cached_property
    def key(self) -> tuple[Any, ...]:
        values = [n.op.value.tobytes() for n in self.graph if isinstance(n.op, Constant)]
        inner = [n.op for n in self.graph if isinstance(n.op, GraphOp)]
        return str(self.graph), tuple(values), tuple(inner)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def differentiate(
        self, vjp: VectorJacobian, dys: Sequence[Node | None], xs: Sequence[Node]
    ) -> Sequence[Node | None] | None:
        """Return the gradients for the inputs `xs`; None if `grad` returns them.

        vjp  differentiates a graph: `minigraph.autodiff.vjp`
        dys  gradients of the results; None for a result that nothing reads
        """
        return None


class Expanded(Op):
    """An op that `expand` defines: `forward` evaluates the expanded graph."""

    def forward(self, *xs: Any) -> Any:
        inputs = placeholders([Spec(x.shape, x.dtype) for x in xs])
        results = Graph(inputs, self.expand(*inputs))(*xs)
        return results if len(results) > 1 else results[0]


class Composed(Expanded):
    """An op that one generated kernel can compute from the simpler ops of `expand`."""

    composed = True


def nested(graph: Graph) -> Iterator[Graph]:
    """Yield the graph, and recursively the graphs that its ops hold."""
    yield graph
    for node in graph:
        if isinstance(node.op, GraphOp):
            yield from nested(node.op.graph)


def placeholders(specs: Sequence[Spec]) -> tuple[Node, ...]:
    """Return inputs of a new graph, one for each spec."""
    return tuple(Node(Input(f"x{i}"), (), (spec,)) for i, spec in enumerate(specs))


class Loop(GraphOp, eq=False):
    """A loop whose body is `graph`: (carries, slices, constants) to (new carries, results).

    Inputs are the initial carries, the arrays that steps get slices of along axis 0, and constants.
    Results are the final carries, and the results of all steps, stacked.

    carried  number of carries
    scanned  number of sliced arrays
    length   number of steps
    reverse  whether the first step gets the last slice
    """

    carried: int
    scanned: int
    length: int
    reverse: bool

    @property
    def key(self) -> tuple[Any, ...]:
        return (*super().key, self.carried, self.scanned, self.length, self.reverse)

    def __str__(self) -> str:
        steps = f"length={self.length}" + (", reverse" if self.reverse else "")
        ops = [node.op.name for node in self.graph if node.inputs]
        return f"{self.name}[{steps}: {', '.join(ops)}]"

    def infer(self, *xs: Spec) -> tuple[Spec, ...]:
        last = self.carried + self.scanned
        for i, (x, inner) in enumerate(zip(xs, self.graph.inputs, strict=True)):
            is_sliced = self.carried <= i < last
            expected = self.stacked(inner.spec) if is_sliced else inner.spec
            if x != expected:
                raise ShapeError(f"operand {i} is {x}; the body takes {expected}")
        outputs = [y.spec for y in self.graph.outputs]
        return (*outputs[: self.carried], *map(self.stacked, outputs[self.carried :]))

    def stacked(self, spec: Spec) -> Spec:
        """Return the spec of the arrays of all steps, stacked along a new axis 0."""
        return Spec((self.length, *spec.shape), spec.dtype)

    def run(
        self, body: Callable[..., Sequence[Any]], xs: Sequence[Any]
    ) -> tuple[Sequence[Any], Iterator[tuple[Spec, list[Any]]]]:
        """Run `body` in place of the graph, once for each step.

        Returns the final carries, and for each stacked result the spec and the list of its slices.
        """
        last = self.carried + self.scanned
        carry, sliced, constants = xs[: self.carried], xs[self.carried : last], xs[last:]
        results: list[Sequence[Any]] = []
        for i in range(self.length)[:: -1 if self.reverse else 1]:
            step = body(*carry, *(x[i, ...] for x in sliced), *constants)
            carry = step[: self.carried]
            results.append(step[self.carried :])
        if self.reverse:
            results.reverse()
        specs = [y.spec for y in self.graph.outputs[self.carried :]]
        return carry, ((spec, [step[k] for step in results]) for k, spec in enumerate(specs))

    def loop(self, body: Callable[..., Sequence[Array]], *xs: Array) -> Any:
        """Return the results of the loop, with `body` in place of the graph."""
        carry, stacks = self.run(body, xs)
        results = [np.array(x) for x in carry]
        results += [np.stack(y) if y else np.empty((0, *s.shape), s.dtype) for s, y in stacks]
        return tuple(results) if len(results) > 1 else results[0]

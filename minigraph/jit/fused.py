"""Fused ops: subgraphs that one kernel computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from minigraph.graph import Graph, GraphOp, Node, Op, Spec, placeholders

T = TypeVar("T")


class Fused(GraphOp, eq=False):
    """A graph that one kernel computes."""

    def __str__(self) -> str:
        ops = [node.op.name for node in self.graph if node.inputs]
        return f"{self.name}[{', '.join(ops)}]"

    def infer(self, *xs: Spec) -> Spec | tuple[Spec, ...]:
        specs = tuple(y.spec for y in self.graph.outputs)
        return specs if len(specs) > 1 else specs[0]

    def forward(self, *xs: Any) -> Any:
        results = self.graph(*xs)
        return results if len(results) > 1 else results[0]

    def expand(self, *xs: Node) -> tuple[Node, ...]:
        return self.graph.replace_nodes(dict(zip(self.graph.inputs, xs, strict=True))).outputs


class HorizontalFusion(Op):
    """Independent small ops in one launch.

    reads  number of inputs of each op; the node's inputs are those of all ops in order
    """

    ops: tuple[Op, ...]
    reads: tuple[int, ...]

    name = "fused"

    def groups(self, xs: Sequence[T]) -> Iterator[tuple[Op, Sequence[T]]]:
        begin = 0
        for op, count in zip(self.ops, self.reads, strict=True):
            yield op, xs[begin : begin + count]
            begin += count

    def infer(self, *xs: Spec) -> tuple[Spec, ...]:
        return tuple(y for op, group in self.groups(xs) for y in _tuple(op.infer(*group)))

    def forward(self, *xs: Any) -> tuple[Any, ...]:
        return tuple(y for op, group in self.groups(xs) for y in _tuple(op.forward(*group)))

    def expand(self, *xs: Node) -> tuple[Node, ...]:
        return tuple(y for op, group in self.groups(xs) for y in op.results(*group))

    def __str__(self) -> str:
        return f"{self.name}[{' | '.join(map(str, self.ops))}]"


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def meaning(op: Op, specs: Sequence[Spec]) -> Graph:
    """Return the graph that the kernel of an op computes."""
    if isinstance(op, Fused):
        return op.graph
    xs = placeholders(specs)
    return Graph(xs, op.expand(*xs) if op.composed else op.results(*xs))

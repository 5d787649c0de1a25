"""A value with a custom gradient, like a custom vector-Jacobian product in JAX."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.graph import Graph, GraphOp, Node, dependents, placeholders
from minigraph.ops.shape import Identity


class GradientRule(GraphOp, Identity, eq=False):
    """y, whose gradients follow a rule that has a graph; the inputs are y, each x, and others."""


class WithGradient(GradientRule, eq=False):
    """y, whose gradients `graph` computes; the inputs are y, each x, and residuals.

    graph  computes the gradient of each x from the gradient of y and the residuals
    """

    def grad(self, dy: Node, result: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        count = len(self.graph.outputs)
        operands = dict(zip(self.graph.inputs, (dy, *xs[count:]), strict=True))
        dxs = self.graph.replace_nodes(operands).outputs
        return (None, *dxs, *(None for _ in xs[count:]))


def with_gradient(y: Node, dy: Node, xs: Sequence[Node], dxs: Sequence[Node]) -> Node:
    """Return y with the gradients `dxs` for `xs`, expressions of the placeholder `dy`."""
    inner = dependents(dxs, [dy])
    operands = {x for node in inner for x in node.inputs} | {*dxs}
    residuals = sorted(operands - inner, key=lambda node: node.order)
    inputs = placeholders([x.spec for x in (dy, *residuals)])
    replacements = dict(zip((dy, *residuals), inputs, strict=True))
    graph = Graph(inputs, Graph((), tuple(dxs)).replace_nodes(replacements).outputs)
    return WithGradient(graph)(y, *xs, *residuals)

"""Values with gradients of their own: given expressions, or recomputed intermediate results."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.graph import Graph, GraphOp, Node, VectorJacobian, dependents, placeholders
from minigraph.ops.elementwise import kind
from minigraph.ops.shape import Identity


class GradientRule(GraphOp, Identity, eq=False):
    """y, whose gradients follow a rule that has a graph; the inputs are y, each x, and others."""


class WithGradient(GradientRule, eq=False):
    """y, whose gradients `graph` computes; the inputs are y, each x, and residuals.

    It is like a custom vector-Jacobian product in JAX.

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


class After(Identity):
    """x, after another value was computed: passes do not merge what is computed from x again."""

    def grad(self, dy: Node, y: Node, x: Node, value: Node) -> tuple[Node, None]:
        return dy, None


class Recomputed(GradientRule, eq=False):
    """y, which `graph` computes from each x, and computes again for their gradients.

    Chen et al., "Training deep nets with sublinear memory cost" (2016)
    """

    recomputes = True

    def differentiate(
        self, vjp: VectorJacobian, dys: Sequence[Node | None], xs: Sequence[Node]
    ) -> list[Node | None]:
        (dy,) = dys
        assert dy is not None
        again = [After()(x, dy) for x in xs[1:]]
        outputs = self.graph.replace_nodes(dict(zip(self.graph.inputs, again, strict=True))).outputs
        floats = [i for i, x in enumerate(again) if kind(x.dtype) == "f"]
        grads: list[Node | None] = [None] * len(xs)
        for i, dx in zip(floats, vjp(outputs, [dy], [again[i] for i in floats]), strict=True):
            grads[i + 1] = dx
        return grads


def recomputed(y: Node, xs: Sequence[Node]) -> Node:
    """Return y, whose gradients compute it again from `xs`, which stay in memory until then.

    Of all that is computed, y depends on `xs` only.
    """
    inputs = placeholders([x.spec for x in xs])
    graph = Graph((), (y,)).replace_nodes(dict(zip(xs, inputs, strict=True)))
    return Recomputed(Graph(inputs, graph.outputs))(y, *xs)

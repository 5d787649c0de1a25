"""A value with a gradient of its own, as a custom vector-Jacobian product in JAX."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.graph import Array, Graph, GraphOp, Node, Shape, Spec, dependents, placeholders


class WithGradient(GraphOp, eq=False):
    """y, whose gradients `graph` computes; the inputs are y, each x, and residuals.

    graph  computes the gradient of each x from the gradient of y and the residuals
    """

    is_view = True
    keeps_order = True

    def infer(self, y: Spec, *xs: Spec) -> Spec:
        return y

    def forward(self, y: Array, *xs: Array) -> Array:
        return y

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...]:
        return tuple(range(len(x)))

    def grad(self, dy: Node, result: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        count = len(self.graph.outputs)
        given = dict(zip(self.graph.inputs, (dy, *xs[count:]), strict=True))
        made = self.graph.map(lambda x, inputs: given[x] if x in given else x.replace(inputs))
        return (None, *made.outputs, *(None for _ in xs[count:]))


def with_gradient(y: Node, dy: Node, xs: Sequence[Node], dxs: Sequence[Node]) -> Node:
    """Return y with the gradients `dxs` for `xs`, expressions of the placeholder `dy`."""
    inside = dependents(dxs, [dy])
    read = {x for node in inside for x in node.inputs} | {*dxs}
    residuals = sorted(read - inside, key=lambda node: node.order)
    places = placeholders([x.spec for x in (dy, *residuals)])
    given = dict(zip((dy, *residuals), places, strict=True))
    reads: dict[Node, tuple[Node, ...]] = dict.fromkeys(residuals, ())
    graph = Graph((), tuple(dxs)).map(
        lambda x, inputs: given[x] if x in given else x.replace(inputs), reads
    )
    return WithGradient(Graph(places, graph.outputs))(y, *xs, *residuals)

"""A value whose gradient is given, instead of being that of the ops which compute it."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.graph import Array, Graph, GraphOp, Node, Shape, Spec, dependents, placeholders


class WithGradient(GraphOp, eq=False):
    """y, whose gradient `graph` computes; the inputs are y, each x, and kept values.

    graph  of the gradient of y and the kept values, to the gradient of each x
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
    """Return y, with the gradients `dxs` of `xs`, which are expressions of `dy`, that of y.

    dy  a placeholder
    """
    inside = dependents(dxs, [dy])
    read = {x for node in inside for x in node.inputs} | {*dxs}
    kept = sorted(read - inside, key=lambda node: node.order)
    places = placeholders([x.spec for x in (dy, *kept)])
    given = dict(zip((dy, *kept), places, strict=True))
    reads: dict[Node, tuple[Node, ...]] = dict.fromkeys(kept, ())
    graph = Graph((), tuple(dxs)).map(
        lambda x, inputs: given[x] if x in given else x.replace(inputs), reads
    )
    return WithGradient(Graph(places, graph.outputs))(y, *xs, *kept)

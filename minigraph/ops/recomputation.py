"""Values whose gradients compute the intermediate results again, instead of keeping them."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.graph import Graph, Node, VectorJacobian, placeholders
from minigraph.ops.custom_gradient import GradientRule
from minigraph.ops.elementwise import kind
from minigraph.ops.shape import Identity


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

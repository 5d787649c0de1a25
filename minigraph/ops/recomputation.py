"""Values whose gradients compute the intermediate results again, instead of keeping them."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.graph import (
    Array,
    Graph,
    Node,
    Op,
    Shape,
    Spec,
    VectorJacobian,
    placeholders,
)
from minigraph.ops.custom_gradient import GradientRule
from minigraph.ops.elementwise import kind


class After(Op):
    """x, after another value was computed: passes do not merge what is computed from x again."""

    is_view = True
    keeps_order = True

    def infer(self, x: Spec, value: Spec) -> Spec:
        return x

    def forward(self, x: Array, *value: Array) -> Array:
        return x

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...]:
        return tuple(range(len(x)))

    def grad(self, dy: Node, y: Node, x: Node, value: Node) -> tuple[Node, None]:
        return dy, None


class Recomputed(GradientRule, eq=False):
    """y, which `graph` computes from each x, and computes again for their gradients.

    Chen et al., "Training deep nets with sublinear memory cost" (2016)
    """

    recomputes = True

    def forward(self, y: Array, *xs: Array) -> Array:
        return y

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

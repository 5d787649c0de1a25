"""What a network computes, counted in its graph."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from typing import NamedTuple

import minigraph as mg
from minigraph import nn, ops
from minigraph.bench.networks import Network, Shape, with_blocks
from minigraph.devices.problem import operations, product_of
from minigraph.graph import DType, Graph, Loop, Node, dependents

LIBRARY = with_blocks(nn, ops)


class Arithmetic(NamedTuple):
    """What a network computes for an example.  Attention counts in full, also what a mask hides.

    parameters  numbers that are trained
    forward     multiplications of the convolutions and matrix products
    training    the same with those of their gradients
    results     numbers that the convolutions and matrix products give
    """

    parameters: int
    forward: int
    training: int
    results: int

    def forward_flops(self, batch: int) -> int:
        """Return the operations of the convolutions and matrix products of a prediction."""
        return 2 * batch * self.forward

    def forward_bytes(self, batch: int, width: int) -> int:
        """Return the bytes that a prediction moves at least: parameters, and results twice."""
        return 2 * width * batch * self.results + 4 * self.parameters

    def flops(self, batch: int) -> int:
        """Return the operations of the convolutions and matrix products of a training step."""
        return 2 * batch * self.training

    def bytes(self, batch: int, width: int) -> int:
        """Return the bytes that a training step with Adam moves at least.

        The result of each convolution and matrix product, `width` bytes a number, is written once
        and read once.  A parameter and its two moments are read and written, in float32.
        """
        return 2 * width * batch * self.results + 4 * 6 * self.parameters


class _Product(NamedTuple):
    """A convolution or matrix product of a network, or all those of one in a loop.

    gradients  how many of its two operands depend on what is trained
    """

    multiplications: int
    results: int
    gradients: int


@functools.lru_cache
def arithmetic(network: Network, shape: Shape, dtype: DType) -> Arithmetic:
    """Return what a network computes for an example of this shape."""
    net = network(LIBRARY).eval()  # which normalises a batch of one, too
    x = mg.input("x", (1, *shape), dtype)
    parameters = [p for p in net.parameters() if p.trainable]
    products = [*_products(Graph((x,), (net(x),)), parameters)]
    return Arithmetic(
        sum(p.size for p in parameters),
        sum(p.multiplications for p in products),
        sum(p.multiplications * (1 + p.gradients) for p in products),
        sum(p.results for p in products),
    )


def _products(graph: Graph, trained: Collection[Node]) -> Iterator[_Product]:
    """Yield the products of a graph, in which gradients flow to the nodes of `trained`."""
    reached = dependents(graph.outputs, trained)
    for node in graph:
        if product_of(node):
            gradients = sum(x in reached for x in node.inputs[:2])
            yield _Product(operations(node) // 2, node.size, gradients)
        elif isinstance(node.op, Loop):
            # What a step carries depends on whatever the loop reads.
            pairs = zip(node.op.graph.inputs, node.inputs, strict=True)
            inside = [
                inner
                for i, (inner, x) in enumerate(pairs)
                if x in reached or (i < node.op.carried and node in reached)
            ]
            for each in _products(node.op.graph, inside):
                count = node.op.length
                yield _Product(count * each.multiplications, count * each.results, each.gradients)

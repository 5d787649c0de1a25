"""A product with the elementwise ops that take its elements as they are made, tile by tile."""

from __future__ import annotations

import functools

from minigraph.graph import Graph, Node, placeholders
from minigraph.jit.domain import NotFusible
from minigraph.jit.expression import takes_index
from minigraph.jit.fused import Fused
from minigraph.jit.kernel import SpecialisedKernel, specialise


class FusedProduct(Fused, eq=False):
    """A product of matrices, the first two inputs, and what elementwise ops make of it."""

    name = "fused"

    @functools.cached_property
    def product(self) -> Node:
        return next(y for y in self.graph if any(x is self.graph.inputs[0] for x in y.inputs))

    @functools.cached_property
    def then(self) -> Graph:
        """What the product is made into; its inputs are the product and the other inputs."""
        (given,) = placeholders([self.product.spec])
        made = self.graph.map(
            lambda node, inputs: given if node is self.product else node.replace(inputs)
        )
        return Graph((given, *self.graph.inputs[2:]), made.outputs)


def specialise_tiles(graph: Graph, pitch: int) -> SpecialisedKernel:
    """Return the kernel for a subgraph that may run on one tile of its matrices after the other.

    pitch  how far apart, in bytes, the rows of a tile of the first input are; the others are
           contiguous

    The two loops are those along rows and columns.  Raises NotFusible where there is none.
    """
    tile, *others = graph.inputs
    kernel = specialise(graph, [(pitch, tile.dtype.itemsize), *(x.spec.strides for x in others)])
    counts = any(takes_index(node.op) for node in graph)
    borders = kernel.pattern.windows or any(kernel.shifts)
    if counts or borders or kernel.pattern.form != "map" or len(kernel.nest.loops) != 2:
        raise NotFusible("the kernel does not run along the rows of a matrix")
    return kernel

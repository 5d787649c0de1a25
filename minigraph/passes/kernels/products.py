"""Products that run in the kernel of what reads them.

The gradient of a matrix of weights is a product with as many sums as the batch has rows.  Writing
it, and reading it again to update the weights, takes longer than computing it where they are few.
So the kernel of an elementwise reader, such as an optimizer's update, computes it by tiles that
stay in the cache: Adam moves 24 bytes a weight instead of 32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minigraph.graph import BFLOAT16, Graph, Node, in_place_of, placeholders
from minigraph.jit.domain import NotFusible
from minigraph.jit.fused import Fused, meaning
from minigraph.jit.product import FusedProduct, specialise_tiles
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.matmul import Matmul
from minigraph.passes.notes import Notes

F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Products:
    """Which products are computed in the kernel that reads them; the defaults suit a processor.

    depth  most sums of an element: with more, a library's product takes longer than the memory
    sides  how many times as long as the sums the result's sides are at least: the operands, of
           which the kernel has a copy, are small beside it
    least  bytes of a result from which on it does not stay in the second cache
    """

    depth: int = 64
    sides: int = 4
    least: int = 4 << 20


def fuse_products(graph: Graph, notes: Notes, products: Products) -> Graph:
    """Let elementwise kernels compute a product that nothing else reads."""
    users, outputs = graph.users(), set(graph.outputs)
    fused: dict[Node, tuple[Node, ...]] = {}
    for node in graph:
        if not isinstance(node.op, Elementwise | Fused) or isinstance(node.op, FusedProduct):
            continue
        for x in dict.fromkeys(node.inputs):
            if x in outputs or len(users[x]) > 1 or not _fits(x, node, products):
                continue
            try:
                fused[node] = _fused(x, node)
            except NotFusible as why:
                notes.miss(x, node, str(why))
                continue
            notes.fired[f"{x.name} in its reader"] += 1
            notes.joined.add(x.order[0])
            break
    return graph.substitute(fused)


def _fits(x: Node, reader: Node, products: Products) -> bool:
    """Whether `x` is a product of few sums, as large as what is made of it."""
    return (
        isinstance(x.op, Matmul)
        and len(x.inputs) == x.ndim == 2
        and x.dtype in (F32, BFLOAT16)
        and x.spec.nbytes >= products.least
        and x.inputs[0].shape[1] <= products.depth
        and x.inputs[0].shape[1] * products.sides <= min(x.shape)
        and all(spec.size == x.size for spec in reader.specs)
    )


def _fused(product: Node, reader: Node) -> tuple[Node, ...]:
    """Return the results of `reader` from one kernel with the product; or raise NotFusible."""
    others = [x for x in reader.inputs if x is not product]
    # Tiles are of float32; what they are made of, and the product, may be rounded to bfloat16.
    operands = [*(x.astype(F32) for x in product.inputs), *others]
    first, second, *rest = placeholders([x.spec for x in operands])
    inside = product.op(first, second).astype(product.dtype)
    inner = meaning(reader.op, [x.spec for x in reader.inputs])
    new = iter(rest)
    pairs = zip(inner.inputs, reader.inputs, strict=True)
    given = {y: inside if x is product else next(new) for y, x in pairs}
    made = inner.map(lambda node, inputs: given[node] if node in given else node.replace(inputs))
    op = FusedProduct(Graph((first, second, *rest), made.outputs))
    specialise_tiles(op.then, F32.itemsize * product.size)
    with in_place_of(product, like=reader):
        return op.results(*operands)

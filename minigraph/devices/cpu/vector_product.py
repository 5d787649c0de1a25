"""Products of a matrix and a vector, as generated kernels: sums of products along rows or columns.

oneDNN's kernels bring the matrix into their own order first, as they would for a second vector.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from minigraph.autotune.candidate import Candidate
from minigraph.devices.cpu import compiler
from minigraph.devices.cpu.kernel import NativeKernel
from minigraph.devices.cpu.kernels import native_kernel
from minigraph.devices.cpu.onednn import F32
from minigraph.devices.problem import Arrangement
from minigraph.graph import Graph, Node, Shape, placeholders
from minigraph.jit.fused import Fused
from minigraph.ops.matmul import Matmul
from minigraph.ops.reduction import Sum
from minigraph.ops.shape import expand_dims, squeeze

NAME = "sum of products"  # the algorithm


def candidates(arrangement: Arrangement, threads: int) -> Iterator[Candidate]:
    """Yield the algorithm for products with one row or one column, or batches of them."""
    node, strides, layouts = arrangement
    if (
        isinstance(node.op, Matmul)
        and node.dtype == F32
        and 1 in node.shape[-2:]
        and compiler.compiler()
    ):
        make = functools.partial(vector_product, node, strides, threads)
        yield Candidate(NAME, layouts, make)


def vector_product(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel:
    """Return the kernel of a product [..., m, k] times [..., k, n], m or n 1, plus any bias [n]."""
    xs = placeholders([x.spec for x in node.inputs])
    x, y, *bias = xs
    lost = -1 if node.shape[-1] == 1 else -2  # the axis of the result that has one element
    if lost == -1:
        total = Sum.of(x * expand_dims(squeeze(y, -1), -2), axis=-1)
    else:
        total = Sum.of(expand_dims(squeeze(x, -2), -1) * y, axis=-2)
    result = expand_dims(total, lost)
    fused = Fused(Graph(xs, (result + bias[0] if bias else result,)))
    kernel = native_kernel(Node(fused, node.inputs, node.specs), strides, threads)
    assert kernel is not None
    kernel.algorithm = NAME
    return kernel

"""One-hot vectors in CUDA."""

from __future__ import annotations

from minigraph.devices.cuda.template import Kernels, Range, WrittenKernel, each_element, element
from minigraph.graph import Node
from minigraph.jit.expression import c_type
from minigraph.ops.indexing import OneHot

# A thread does an element.  A negative label is a large one.
TEXT = """
    const uint64_t n = a.w[%(sizes)d + 1];
    const uint64_t label = ((const %(L)s *)mg_global(a.w[0]))[e / (%(I)s)n];
    if (label >= n) *(int *)mg_global(a.w[%(flag)d]) = 1;
    ((%(T)s *)mg_global(a.w[1]))[e] = %(store)s((%(W)s)(label == e %% (%(I)s)n));
  }
}
"""


def one_hot(op: OneHot, node: Node) -> WrittenKernel:
    (labels,) = node.inputs
    fill = {**element(node.dtype), "L": c_type(labels.dtype)}
    launch = each_element(node, TEXT, node.size, (op.size,), **fill)
    return WrittenKernel(launch, range=Range(0, 0, op.size))


KERNELS: Kernels = {OneHot: one_hot}

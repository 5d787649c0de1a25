"""Which kernel computes a node on a CUDA device: one that is written by hand, or generated."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.devices.cuda import indexing, loss, pooling, reorder, rows
from minigraph.devices.cuda.generated import PROCESSORS, generated_kernel
from minigraph.devices.cuda.kernel import CudaKernel
from minigraph.devices.cuda.template import Kernels
from minigraph.graph import Node, Shape
from minigraph.ops.layout import Reorder

WRITTEN: Kernels = {
    **indexing.KERNELS,
    **loss.KERNELS,
    **pooling.KERNELS,
    **reorder.KERNELS,
    **rows.KERNELS,
}


def cuda_kernel(
    node: Node, strides: Sequence[Shape], processors: int = PROCESSORS
) -> CudaKernel | None:
    """Return the handwritten kernel of a node, else the generated one.

    strides     of its inputs, in bytes
    processors  multiprocessors of the device

    None if there is neither, as for empty arrays.
    """
    if not all(s.size for s in (*(x.spec for x in node.inputs), *node.specs)):
        return None
    # A generated kernel reorders views as they are: that of channels last is a plain copy.
    view = isinstance(node.op, Reorder) and strides[0] != node.inputs[0].spec.strides
    written = None if view else WRITTEN.get(type(node.op))
    return (written and written(node.op, node)) or generated_kernel(node, strides, processors)

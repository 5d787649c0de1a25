"""Kernels of steps on a CUDA device: launches, or calls of a library."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from minigraph.devices.cuda import (
    cumulative,
    indexing,
    launches,
    normalization,
    one_hot,
    ordering,
    pooling,
    reorder,
    softmax,
)
from minigraph.devices.cuda.launches import Launch
from minigraph.devices.cuda.template import Kernels, Range
from minigraph.devices.reference import NumpyKernel
from minigraph.graph import Array, Node, Shape
from minigraph.ops.layout import Reorder
from minigraph.program import Kernel

WRITTEN: Kernels = {
    **cumulative.KERNELS,
    **indexing.KERNELS,
    **normalization.KERNELS,
    **one_hot.KERNELS,
    **ordering.KERNELS,
    **pooling.KERNELS,
    **reorder.KERNELS,
    **softmax.KERNELS,
}


class DeviceKernel(Kernel):
    """What computes a node on the device.

    launches  of kernels that are generated or written
    """

    def __init__(self, node: Node, launches: Sequence[Launch]) -> None:
        self.node = node
        self.launches = launches
        self.sources = [*dict.fromkeys(launch.source for launch in launches)]

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Compute in NumPy."""
        NumpyKernel(self.node).run(inputs, outputs, scratch)


class CudaKernel(DeviceKernel):
    """A kernel of one or a few launches.

    range  of the integers among its inputs, where not all are valid; the kernel gets, after the
           addresses of its outputs, that of the flag which it sets for invalid ones
    """

    maker = "cuda"

    def __init__(
        self,
        node: Node,
        launches: Sequence[Launch],
        scratch: int = 0,
        strided: Sequence[bool] = (),
        inplace: Sequence[Sequence[int]] = (),
        range: Range | None = None,
    ) -> None:
        super().__init__(node, launches)
        self.scratch = scratch
        self.strided = strided
        self.inplace = inplace
        self.range = range
        self.refuses = range is not None


class LibraryKernel(DeviceKernel):
    """A kernel that calls a library, which enqueues its work and allocates nothing.

    launches  those that come before the library, then those that follow
    """

    @abstractmethod
    def enqueue(
        self, inputs: Sequence[int], outputs: Sequence[int], scratch: int, stream: int
    ) -> None:
        """Enqueue the work; operands are addresses in device memory."""


def cuda_kernel(
    node: Node, strides: Sequence[Shape], processors: int = launches.PROCESSORS
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
    if type(node.op) in WRITTEN and not view:
        made = WRITTEN[type(node.op)](node.op, node)
        if made is not None:
            kernel = CudaKernel(node, [made.launch], inplace=made.inplace, range=made.range)
            kernel.alignment = made.alignment
            return kernel
    found = launches.launches(node, strides, processors)
    if found is None:
        return None
    readable = (True,) * len(strides)
    return CudaKernel(node, found.launches, found.scratch, readable, found.inplace)

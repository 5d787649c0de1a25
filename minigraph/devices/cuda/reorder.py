"""Images moved between nchw and the layouts with lanes, in CUDA: transposed matrices."""

from __future__ import annotations

import math

from minigraph.devices.cuda.kernel import CudaKernel
from minigraph.devices.cuda.written import THREADS, Kernels, written_kernel
from minigraph.graph import Node
from minigraph.ops.layout import Reorder

VECTOR, ACROSS = 16, 8  # bytes of an access, and how many make a row of a tile


def reorder(op: Reorder, node: Node) -> CudaKernel | None:
    """Return the kernel of a reorder of contiguous images, None where most of a tile is empty."""
    (x,) = node.inputs
    if x.ndim == node.ndim:
        return None
    pixels, (lanes,) = math.prod(x.shape[2:4]), (*node.shape[4:], *x.shape[4:])
    rows, columns = (lanes, pixels) if x.ndim == 4 else (pixels, lanes)
    vector = VECTOR // x.dtype.itemsize
    side = ACROSS * vector
    if min(rows, columns) < side // 4:
        return None
    tiles = x.size // (rows * columns) * -(-rows // side) * -(-columns // side)
    held = f"uint{8 * x.dtype.itemsize}_t"
    macros = {"T": held, "SIDE": side, "VECTOR": vector, "ACROSS": ACROSS}
    return written_kernel(node, "reorder", macros, tiles, (rows, columns), THREADS)


KERNELS: Kernels = {Reorder: reorder}

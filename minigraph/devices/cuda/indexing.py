"""Gathers and scatters along an axis, and one-hot vectors, in CUDA.

If several indices may select one element of the result, each thread or block searches the indices
for those of its elements.  So every run gives the same bits.
"""

from __future__ import annotations

from minigraph.devices.cuda.handwritten import (
    MAX_THREADS,
    THREADS,
    WARP,
    Kernels,
    element,
    handwritten_kernel,
)
from minigraph.devices.cuda.kernel import CudaKernel
from minigraph.graph import Node, sizes_around
from minigraph.jit.expression import c_type
from minigraph.ops.indexing import AddAlong, OneHot, PutAlong, Take, TakeAlong, TakeBackward

VECTOR_BYTES = 16  # bytes
SUMS_PER_THREAD = 4  # more would need too many registers in a block of MAX_THREADS


def take(op: Take, node: Node) -> CudaKernel:
    x, indices = node.inputs
    _, n, columns = sizes_around(x.shape, op.axis)
    size = x.dtype.itemsize
    unit = size if columns * size % VECTOR_BYTES else VECTOR_BYTES
    sizes = (n, indices.size, columns * size // unit)
    return _gather(node, sizes, unit, not op.tokens, "e / columns % count")


def take_along(op: TakeAlong, node: Node) -> CudaKernel:
    x, _ = node.inputs
    _, n, columns = sizes_around(x.shape, op.axis)
    sizes = n, node.shape[op.axis], columns
    return _gather(node, sizes, x.dtype.itemsize, not op.labels, "e")


def _gather(
    node: Node, sizes: tuple[int, int, int], unit: int, wraps: bool, index_position: str
) -> CudaKernel:
    """Return a gather in which a thread moves `unit` bytes.

    sizes           n, count, and columns in units
    index_position  C expression for the position of the index for element e
    """
    macros = {
        "T": "mg_vector<uint32_t, 4>" if unit == VECTOR_BYTES else f"uint{8 * unit}_t",
        "L": c_type(node.inputs[1].dtype),
        "WRAPS": int(wraps),
        "INDEX_POSITION": index_position,
    }
    alignment = unit if unit == VECTOR_BYTES else 1
    count = node.spec.nbytes // unit
    return handwritten_kernel(node, "gather", macros, count, sizes, alignment=alignment)


def take_backward(op: TakeBackward, node: Node) -> CudaKernel:
    dy, indices, *x = node.inputs
    outer, n, columns = sizes_around(op.shape, op.axis)
    macros = {
        **element(dy.dtype),
        "L": c_type(indices.dtype),
        "WRAPS": int(not op.tokens),
        "SUMS": min(SUMS_PER_THREAD, -(-columns // WARP)),
        "STARTS": len(x),
    }
    threads = THREADS if indices.size <= MAX_THREADS else MAX_THREADS
    sizes = (columns, n, indices.size)
    return handwritten_kernel(node, "take_backward", macros, outer * n, sizes, threads=threads)


def scatter(op: AddAlong | PutAlong, node: Node) -> CudaKernel:
    indices, is_add = node.inputs[1], isinstance(op, AddAlong)
    wraps = not (isinstance(op, AddAlong) and op.labels)
    types = element(node.dtype) if is_add else {"T": f"uint{8 * node.dtype.itemsize}_t"}
    _, n, columns = sizes_around(node.shape, op.axis)
    macros = {**types, "L": c_type(indices.dtype), "WRAPS": int(wraps), "ADDS": int(is_add)}
    macros["STARTS"] = len(node.inputs) - 2
    sizes = n, indices.shape[op.axis], columns
    return handwritten_kernel(node, "scatter", macros, node.size, sizes)


def one_hot(op: OneHot, node: Node) -> CudaKernel:
    (labels,) = node.inputs
    macros = {**element(node.dtype), "L": c_type(labels.dtype)}
    return handwritten_kernel(node, "one_hot", macros, node.size, (op.size,))


KERNELS: Kernels = {
    OneHot: one_hot,
    Take: take,
    TakeBackward: take_backward,
    TakeAlong: take_along,
    AddAlong: scatter,
    PutAlong: scatter,
}

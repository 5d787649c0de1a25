"""The kernel for each node on a CUDA device, handwritten or generated.

And the generated epilogues of a library's convolutions and products.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from minigraph.devices.cuda import images, indexing, rows
from minigraph.devices.cuda.generated import DEFAULT_PROCESSORS, generated_kernel
from minigraph.devices.cuda.handwritten import Kernels
from minigraph.devices.cuda.kernel import Addresses, CudaKernel, Launch, Operands
from minigraph.devices.problem import Product, product_of
from minigraph.graph import Graph, Node, Op, Shape, input
from minigraph.jit.fused import Fused
from minigraph.ops.layout import Reorder
from minigraph.ops.matmul import Matmul

HANDWRITTEN: Kernels = {**images.KERNELS, **indexing.KERNELS, **rows.KERNELS}


def cuda_kernel(
    node: Node, strides: Sequence[Shape], processors: int = DEFAULT_PROCESSORS
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
    written = None if view else HANDWRITTEN.get(type(node.op))
    return (written and written(node.op, node)) or generated_kernel(node, strides, processors)


# ---------------------------------------------------------------- behind a library


class Exactness(NamedTuple):
    """The approximations that libraries may use.

    tf32       whether products of float32 may be rounded to tf32
    fast_math  whether a relu may turn NaN into 0, as in the libraries
    """

    tf32: bool = False
    fast_math: bool = False


def library_product(node: Node, ops: Container[type[Op]], dtypes: Container[str]) -> Product | None:
    """Return the product that a node is, if it is of these ops and dtypes alone, and not empty."""
    made = product_of(node)
    if made is None or type(made.op) not in ops or node.dtype.name not in dtypes:
        return None
    return made if all(x.size and x.dtype == node.dtype for x in (*node.inputs, node)) else None


def epilogue_of(node: Node, found: Product) -> Node | None:
    """Return the epilogue of a node's product, a node of its result and bias in their layouts."""
    y = input("y", node.shape, node.dtype)
    operands, result = [y], y
    if len(node.inputs) > 2:
        shape = node.shape[-1:]
        if not isinstance(found.op, Matmul):
            (k,) = node.inputs[2].shape
            shape = (k // node.shape[4], 1, 1, node.shape[4]) if node.ndim == 5 else (k, 1, 1)
        operands.append(input("bias", shape, node.dtype))
        result = y + operands[1]
    if found.activation is not None:
        result = found.activation(result)
    return None if result is y else Fused(Graph(tuple(operands), (result,)))(*operands)


def in_place(epilogue: Node | None) -> list[Launch]:
    """Return the launches of a node of a kernel's result, which they change, and of its bias."""
    if epilogue is None:
        return []
    made = cuda_kernel(epilogue, [x.spec.strides for x in epilogue.inputs])
    assert made is not None and made.may_overwrite(0) and not made.scratch

    def find(inputs: Addresses, outputs: Addresses, scratch: int) -> Operands:
        return [outputs[0], *inputs[2:]], outputs, scratch

    return [launch.within(find) for launch in made.launches]

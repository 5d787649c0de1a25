"""The handwritten or generated kernel for each node on a CUDA device.

The module also has the generated epilogues of a library's convolutions and products.
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

    None if neither exists, as for empty arrays.
    """
    if not all(s.size for s in (*(x.spec for x in node.inputs), *node.specs)):
        return None
    # A generated kernel reads views directly: reordering a view with channels last is a plain copy.
    is_view = isinstance(node.op, Reorder) and strides[0] != node.inputs[0].spec.strides
    make = None if is_view else HANDWRITTEN.get(type(node.op))
    return (make and make(node.op, node)) or generated_kernel(node, strides, processors)


# ---------------------------------------------------------------- libraries and epilogues


class Exactness(NamedTuple):
    """The approximations that libraries may use.

    tf32       whether products of float32 may be rounded to tf32
    fast_math  whether a relu may turn NaN into 0, as in the libraries
    """

    tf32: bool = False
    fast_math: bool = False


def library_product(node: Node, ops: Container[type[Op]], dtypes: Container[str]) -> Product | None:
    """Return the product of a node; None for an empty product or one of other ops or dtypes."""
    product = product_of(node)
    if product is None or type(product.op) not in ops or node.dtype.name not in dtypes:
        return None
    return product if all(x.size and x.dtype == node.dtype for x in (*node.inputs, node)) else None


def epilogue_of(node: Node, product: Product) -> Node | None:
    """Return the bias and activation after a product, as a node of its result and the bias.

    None if the product has neither.
    """
    y = input("y", node.shape, node.dtype)
    operands, result = [y], y
    if len(node.inputs) > 2:
        shape = node.shape[-1:]
        if not isinstance(product.op, Matmul):
            (k,) = node.inputs[2].shape
            shape = (k // node.shape[4], 1, 1, node.shape[4]) if node.ndim == 5 else (k, 1, 1)
        operands.append(input("bias", shape, node.dtype))
        result = y + operands[1]
    if product.activation is not None:
        result = product.activation(result)
    return None if result is y else Fused(Graph(tuple(operands), (result,)))(*operands)


def in_place(epilogue: Node | None) -> list[Launch]:
    """Return the launches that apply an epilogue to a kernel's result, which they overwrite."""
    if epilogue is None:
        return []
    kernel = cuda_kernel(epilogue, [x.spec.strides for x in epilogue.inputs])
    assert kernel is not None and kernel.may_overwrite(0) and not kernel.scratch

    def select(inputs: Addresses, outputs: Addresses, scratch: int) -> Operands:
        return [outputs[0], *inputs[2:]], outputs, scratch

    return [launch.within(select) for launch in kernel.launches]

"""Kernels of float32 for floats of 16 bits: of the ops that no text computes in those."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minigraph.devices.cpu.converted import Conversion, ConvertedKernel
from minigraph.devices.reference import NumpyKernel
from minigraph.graph import Node, Shape, Spec, placeholders
from minigraph.jit.small_float import FLOAT32, SMALL_FLOATS
from minigraph.ops.elementwise import Astype
from minigraph.program import Kernel

MakeKernel = Callable[[Node, Sequence[Shape]], Kernel | None]


def widened_kernel(node: Node, strides: Sequence[Shape], make: MakeKernel) -> Kernel | None:
    """Return the kernel of a node that reads floats of 16 bits by way of float32, or None.

    make  returns the kernel of a node whose inputs have these strides, in bytes
    """
    if not any(x.dtype in SMALL_FLOATS for x in node.inputs):
        return None
    whole, lie = wide_node(node, strides)
    wide = make(whole, lie)
    if wide is None or isinstance(wide, NumpyKernel):
        return None
    return around(node, strides, wide, make)


def wide_node(node: Node, strides: Sequence[Shape]) -> tuple[Node, list[Shape]]:
    """Return a node without floats of 16 bits, in float32, and the strides of its inputs."""
    given = placeholders([_wide(x.spec) for x in node.inputs])
    whole = node.op.results(*given)[0].inputs[0] if node.is_bundle else node.op(*given)
    pairs = zip(node.inputs, given, strides, strict=True)
    return whole, [lies if x.spec == y.spec else y.spec.strides for x, y, lies in pairs]


def around(node: Node, strides: Sequence[Shape], wide: Kernel, make: MakeKernel) -> ConvertedKernel:
    """Return the kernel of a node that reads floats of 16 bits, made of that of `wide_node`."""
    before = [
        _cast(x.spec, _wide(x.spec), lies, make) if x.dtype in SMALL_FLOATS else None
        for x, lies in zip(node.inputs, strides, strict=True)
    ]
    after = [
        _cast(_wide(y), y, _wide(y).strides, make) if y.dtype in SMALL_FLOATS else None
        for y in node.specs
    ]
    strided = [each is not None or wide.reads_strided(i) for i, each in enumerate(before)]
    return ConvertedKernel(before, wide, after, "in float32", strided)


def _cast(given: Spec, made: Spec, strides: Shape, make: MakeKernel) -> Conversion:
    """Return the conversion from one type to another."""
    kernel = make(Node(Astype(made.dtype), placeholders([given]), (made,)), [strides])
    assert kernel is not None, "every cast has a kernel"
    return Conversion(kernel, made if made.dtype == FLOAT32 else given)


def _wide(spec: Spec) -> Spec:
    return Spec(spec.shape, FLOAT32) if spec.dtype in SMALL_FLOATS else spec

"""Casts: around kernels of float32, for floats of 16 bits, and of inputs to smaller integers.

No text computes most ops in floats of 16 bits.  Integers are checked while they are written: NumPy
would read them again.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from minigraph.devices.cpu import compiler
from minigraph.devices.cpu.converted import Conversion, ConvertedKernel
from minigraph.devices.cpu.kernel import address_of
from minigraph.devices.reference import NumpyKernel
from minigraph.graph import INTEGERS, Array, DType, Node, Shape, Spec, cast, placeholders
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.jit.small_float import FLOAT32, SMALL_FLOATS
from minigraph.jit.source import KernelSource
from minigraph.ops.elementwise import Astype
from minigraph.program import Kernel

NARROW = Path(__file__).with_name("narrow.c").read_text()
SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
MANY = 1 << 14
MakeKernel = Callable[[Node, Sequence[Shape]], Kernel | None]


def upcast_kernel(node: Node, strides: Sequence[Shape], make: MakeKernel) -> Kernel | None:
    """Return the kernel of a node that reads floats of 16 bits by way of float32, or None.

    make  returns the kernel of a node whose inputs have these strides, in bytes
    """
    if not any(x.dtype in SMALL_FLOATS for x in node.inputs):
        return None
    whole, lie = upcast_node(node, strides)
    wide = make(whole, lie)
    if wide is None or isinstance(wide, NumpyKernel):
        return None
    return with_casts(node, strides, wide, make)


def upcast_node(node: Node, strides: Sequence[Shape]) -> tuple[Node, list[Shape]]:
    """Return a node without floats of 16 bits, in float32, and the strides of its inputs."""
    operands = placeholders([_upcast_spec(x.spec) for x in node.inputs])
    whole = node.op.results(*operands)[0].inputs[0] if node.is_bundle else node.op(*operands)
    pairs = zip(node.inputs, operands, strides, strict=True)
    return whole, [lies if x.spec == y.spec else y.spec.strides for x, y, lies in pairs]


def with_casts(
    node: Node, strides: Sequence[Shape], wide: Kernel, make: MakeKernel
) -> ConvertedKernel:
    """Return the kernel of a node that reads floats of 16 bits, made of that of `upcast_node`."""
    before = [
        _cast(x.spec, _upcast_spec(x.spec), lies, make) if x.dtype in SMALL_FLOATS else None
        for x, lies in zip(node.inputs, strides, strict=True)
    ]
    after = [
        _cast(_upcast_spec(y), y, _upcast_spec(y).strides, make)
        if y.dtype in SMALL_FLOATS
        else None
        for y in node.specs
    ]
    strided = [each is not None or wide.reads_strided(i) for i, each in enumerate(before)]
    return ConvertedKernel(before, wide, after, "in float32", strided)


def _cast(source: Spec, target: Spec, strides: Shape, make: MakeKernel) -> Conversion:
    """Return the conversion from one type to another."""
    kernel = make(Node(Astype(target.dtype), placeholders([source]), (target,)), [strides])
    assert kernel is not None, "every cast has a kernel"
    return Conversion(kernel, target if target.dtype == FLOAT32 else source)


def _upcast_spec(spec: Spec) -> Spec:
    return Spec(spec.shape, FLOAT32) if spec.dtype in SMALL_FLOATS else spec


def narrow(array: Array, dtype: DType, on_disk: bool) -> Array:
    """Return an array of the host in another dtype, as `cast` does.

    on_disk  whether kernels may be looked for, and kept, on disk
    """
    plain = array.size >= MANY and array.flags.c_contiguous and array.flags.aligned
    if plain and (function := _function(array.dtype, dtype, on_disk)):
        result = np.empty(array.shape, dtype)
        if function(address_of(array), address_of(result), array.size):
            return result
    return cast(array, dtype)  # which names what does not fit


@functools.cache
def _function(source: DType, target: DType, on_disk: bool) -> Callable[[int, int, int], int] | None:
    """Return the compiled function; None without a compiler, and where it is not needed."""
    if not {source, target} <= {*INTEGERS} or np.can_cast(source, target):
        return None
    if not compiler.compiler():
        return None
    macros = {"S": c_type(source), "T": c_type(target), "UNSIGNED": int(source.kind == "u")}
    text = KernelSource(with_macros(NARROW, **macros))
    address = compiler.KERNELS.functions([text], on_disk)[text.name]
    return SIGNATURE(address) if address else None

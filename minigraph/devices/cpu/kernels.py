"""The C kernel for each node, generated or handwritten."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress

from minigraph.devices.cpu import compiler, halide_compiler, handwritten, indexing, pooling
from minigraph.devices.cpu.convolution import CONVOLUTIONS, convolution_kernel
from minigraph.devices.cpu.halide_kernel import HalideKernel
from minigraph.devices.cpu.kernel import (
    KernelCall,
    KernelTable,
    NativeKernel,
    Operands,
    ParallelCallsKernel,
    cache_bytes,
    threads_for,
)
from minigraph.devices.cpu.move import move
from minigraph.devices.cpu.product import matmul_kernel
from minigraph.devices.parts import (
    KernelPart,
    KernelParts,
    can_be_generated,
    filled,
    kernel_parts,
)
from minigraph.graph import Graph, Node, Op, Shape, Spec, placeholders
from minigraph.jit.c.source import c_source
from minigraph.jit.domain import NotFusible
from minigraph.jit.fused import Fused, HorizontalFusion
from minigraph.jit.small_float import SMALL_FLOATS
from minigraph.ops.elementwise import kind
from minigraph.ops.indexing import OneHot, PutAlong, Take, TakeAlong, TakeBackward
from minigraph.ops.joining import swapaxes
from minigraph.ops.matmul import Matmul
from minigraph.ops.observation import Check
from minigraph.ops.reduction import Sum
from minigraph.ops.shape import expand_dims

HANDWRITTEN: KernelTable = {**handwritten.KERNELS, **indexing.KERNELS, **pooling.KERNELS}
# Ops whose kernels read 16-bit floats: they only move elements, or convert them.
READ_SMALL_FLOATS = (Check, OneHot, PutAlong, Take, TakeAlong, TakeBackward, *pooling.KERNELS)
MAX_SHORT_ROW = 63  # distance between rows, in elements, up to which vectors across rows are faster


def native_kernel(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel | None:
    """Return the kernel for `node`, or None if it has none."""
    specs = [*(x.spec for x in node.inputs), *node.specs]
    if not all(s.size for s in specs):
        return None
    is_horizontal = isinstance(node.op, HorizontalFusion)
    elements = sum(s.size for s in node.specs) if is_horizontal else max(s.size for s in specs)
    threads = threads_for(elements, threads)
    kernel = _kernel(node, strides, specs, threads)
    if kernel:
        kernel.threads = threads
    return kernel


def _kernel(
    node: Node, strides: Sequence[Shape], specs: Sequence[Spec], threads: int
) -> NativeKernel | None:
    """Return the kernel that runs on at most `threads` threads."""
    small = not SMALL_FLOATS.isdisjoint(s.dtype for s in specs)
    has_c = compiler.compiler() is not None
    readable = not small or isinstance(node.op, READ_SMALL_FLOATS)
    handwritten_kernel = HANDWRITTEN.get(type(node.op)) if has_c and readable else None
    if handwritten_kernel and (kernel := handwritten_kernel(node.op, node, threads)):
        return kernel
    if isinstance(node.op, Matmul) and 1 in node.shape[-2:]:
        node = node if small or kind(node.dtype) == "b" else _sum_of_products(node, strides)
    if isinstance(node.op, (Matmul, *CONVOLUTIONS)) and (small or not has_c):
        return None
    if isinstance(node.op, Matmul):
        return matmul_kernel(node, strides, threads)
    if isinstance(node.op, CONVOLUTIONS):
        return convolution_kernel(node, threads)
    if has_c and not halide_compiler.is_selected() and (kernel := move(node, strides, threads)):
        return kernel
    generated = kernel_parts(node, strides, MAX_SHORT_ROW)
    if generated is None:
        return None
    transposed = _transposed_inputs(generated, node, strides)
    if transposed:
        inputs = enumerate(zip(node.inputs, strides, strict=True))
        contiguous = [x.spec.strides if i in transposed else s for i, (x, s) in inputs]
        generated = kernel_parts(node, contiguous, MAX_SHORT_ROW)
        assert generated is not None
    strided = [i not in transposed for i, _ in enumerate(strides)]
    if halide_compiler.is_selected():
        with suppress(NotFusible):
            return HalideKernel(node, generated, threads, strided)
    if not has_c:
        return None
    if isinstance(node.op, HorizontalFusion):  # each kernel runs on one thread
        offsets = [*itertools.accumulate((p.kernel.scratch(1) for p in generated.parts), initial=0)]
        calls = [_call(part, node, 1, offsets[i]) for i, part in enumerate(generated.parts)]
        return ParallelCallsKernel(node, calls, offsets[-1], strided, generated.inplace)
    calls = [_call(part, node, threads) for part in generated.parts]
    scratch = max(part.kernel.scratch(threads) for part in generated.parts)
    return NativeKernel(node, calls, scratch, strided, generated.inplace)


def _sum_of_products(node: Node, strides: Sequence[Shape]) -> Node:
    """Return a product of a matrix and a vector as a fused multiplication and sum.

    Its kernel reads the matrix once, in the order of memory.
    """
    xs = placeholders([x.spec for x in node.inputs])
    x, y, *bias = xs
    axis = -1 if node.shape[-1] == 1 else -2  # the axis of the result that has one element
    if axis == -1 or strides[1][-2] == y.dtype.itemsize:
        total = Sum.of(x * swapaxes(y, -1, -2), axis=-1)
    else:
        total = Sum.of(swapaxes(x, -1, -2) * y, axis=-2)
    result = expand_dims(total, axis).astype(node.dtype)
    fused = Fused(Graph(xs, (result + bias[0] if bias else result,)))
    return Node(fused, node.inputs, node.specs)


def _transposed_inputs(generated: KernelParts, node: Node, strides: Sequence[Shape]) -> set[int]:
    """Return the inputs whose contiguous axis is not that of the kernel's rows.

    Rows would gather the elements one by one, while a contiguous copy is made in tiles.
    """
    transposed: set[int] = set()
    for part in generated.parts:
        pattern = part.kernel.pattern
        if pattern.form == "row":
            inputs = range(len(node.inputs))[part.ins]
            accesses = zip(inputs, pattern.accesses, strict=False)
            transposed |= {i for i, access in accesses if access == "strided"}
    return {i for i in transposed if node.inputs[i].dtype.itemsize in strides[i]}


def has_kernels(op: Op) -> bool:
    """Whether an op has kernels for some shapes and dtypes."""
    computed = type(op) in HANDWRITTEN or isinstance(op, (Matmul, *CONVOLUTIONS))
    return computed or can_be_generated(op)


def _call(part: KernelPart, node: Node, threads: int, scratch_offset: int = 0) -> KernelCall:
    """Return the call of a generated kernel, whose scratch memory begins at this offset."""
    stream = max(s.nbytes for s in node.specs[part.outs]) > cache_bytes() // 2

    def block(operands: Operands) -> list[int]:
        results = [(slot, offset + part.offset) for slot, offset in operands.outputs[part.outs]]
        places, (slot, offset) = [*operands.inputs[part.ins], *results], operands.scratch
        return part.kernel.block(threads, places, (slot, offset + scratch_offset), stream)

    return KernelCall(c_source(part.kernel.pattern), block)


def fill(node: Node, threads: int) -> KernelCall:
    """Return the call that fills a result with zeros."""
    return _call(filled(node.spec, 0), node, threads)

"""Kernels between conversions of their operands and results, to another dtype or layout.

Float16 and bfloat16 are computed in float32.  minigraph's convolutions of nchw images reorder them
to blocks of channels; oneDNN does the same and takes precedence, except for weights' gradients of
many pixels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from minigraph.autotune.candidate import Candidate
from minigraph.devices.cpu import direct, onednn, winograd
from minigraph.devices.cpu.kernel import CpuKernel, Linker, NativeCall, Operands, constants_of
from minigraph.devices.cpu.kernels import native_kernel
from minigraph.devices.cpu.primitives import sums_of_many_pixels
from minigraph.devices.problem import ROLES, Arrangement, arrangement_of, layouts_of, product_of
from minigraph.graph import Node, Shape, Spec, placeholders
from minigraph.jit.small_float import FLOAT32, SMALL_FLOATS
from minigraph.jit.source import KernelSource
from minigraph.ops.elementwise import Astype
from minigraph.ops.layout import Reorder
from minigraph.program import round_up

MakeKernel = Callable[[Node, Sequence[Shape]], CpuKernel | None]


class Conversion(NamedTuple):
    """A kernel that converts an operand, and the spec of the operand of the inner kernel."""

    kernel: CpuKernel
    spec: Spec


class ConvertedKernel(CpuKernel):
    """Conversions of the inputs, a kernel that reads them, and its results converted back.

    before   conversion of each input; None for an input that `kernel` reads directly
    kernel   computes the results from the converted inputs
    after    conversion of each result; None for a result that `kernel` writes directly
    suffix   appended to the algorithm's name in reports
    strided  whether each input may be a view that is not contiguous
    """

    def __init__(
        self,
        before: Sequence[Conversion | None],
        kernel: CpuKernel,
        after: Sequence[Conversion | None],
        suffix: str,
        strided: Sequence[bool] = (),
    ) -> None:
        self.before = before
        self.kernel = kernel
        self.after = after
        self.maker = kernel.maker
        self.algorithm = f"{kernel.algorithm} {suffix}".strip()
        self.strided = strided
        self.validates_input = kernel.validates_input
        self.threads = kernel.threads
        self.preparations = kernel.preparations
        assert all(before[i] is None for i in self.preparations), "they are not converted"
        conversions = [*before, *after]
        sizes = [0 if each is None else round_up(each.spec.nbytes) for each in conversions]
        self.offsets = [*itertools.accumulate(sizes, initial=0)]
        self.scratch = self.offsets[-1] + max(kernel.scratch for kernel in self._kernels())

    @property
    def texts(self) -> Sequence[KernelSource]:
        return [text for kernel in self._kernels() for text in kernel.texts]

    def _kernels(self) -> list[CpuKernel]:
        return [self.kernel, *(each.kernel for each in (*self.before, *self.after) if each)]

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        slot, start = operands.scratch
        external = [*operands.inputs, *operands.outputs]
        conversions = [*self.before, *self.after]
        places = [
            place if each is None else (slot, start + offset)
            for place, each, offset in zip(external, conversions, self.offsets, strict=False)
        ]
        count, scratch = len(self.before), (slot, start + self.offsets[-1])
        first: list[NativeCall] = []
        last: list[NativeCall] = []
        for i, each in enumerate(conversions):
            if each is not None:
                pair = (external[i], places[i]) if i < count else (places[i], external[i])
                conversion_operands = Operands(pair[:1], pair[1:], scratch)
                (first if i < count else last).extend(
                    each.kernel.calls(conversion_operands, linker)
                )
        inner = Operands(places[:count], places[count:], scratch, operands.prepared)
        return [*first, *self.kernel.calls(inner, linker), *last]


# ---------------------------------------------------------------- floats of 16 bits


def upcast_kernel(node: Node, strides: Sequence[Shape], make: MakeKernel) -> ConvertedKernel | None:
    """Return the kernel of a node with 16-bit floats that computes in float32, or None.

    make  returns the kernel of a node whose inputs have these strides, in bytes
    """
    if not any(x.dtype in SMALL_FLOATS for x in node.inputs):
        return None
    operands = placeholders([_upcast_spec(x.spec) for x in node.inputs])
    upcast = node.op.results(*operands)[0].inputs[0] if node.is_bundle else node.op(*operands)
    pairs = zip(node.inputs, operands, strides, strict=True)
    kernel = make(upcast, [s if x.spec == y.spec else y.spec.strides for x, y, s in pairs])
    if kernel is None:
        return None
    before = [
        _cast(x.spec, _upcast_spec(x.spec), s, make) if x.dtype in SMALL_FLOATS else None
        for x, s in zip(node.inputs, strides, strict=True)
    ]
    after = [
        _cast(_upcast_spec(y), y, _upcast_spec(y).strides, make)
        if y.dtype in SMALL_FLOATS
        else None
        for y in node.specs
    ]
    strided = [each is not None or kernel.reads_strided(i) for i, each in enumerate(before)]
    return ConvertedKernel(before, kernel, after, "in float32", strided)


def _cast(source: Spec, target: Spec, strides: Shape, make: MakeKernel) -> Conversion:
    kernel = make(Node(Astype(target.dtype), placeholders([source]), (target,)), [strides])
    assert kernel is not None, "every cast has a kernel"
    return Conversion(kernel, target if target.dtype == FLOAT32 else source)


def _upcast_spec(spec: Spec) -> Spec:
    return Spec(spec.shape, FLOAT32) if spec.dtype in SMALL_FLOATS else spec


# ---------------------------------------------------------------- blocks of channels


def candidates(arrangement: Arrangement, threads: int) -> Iterator[Candidate]:
    """Yield algorithms for blocks of channels, with reorders, if oneDNN has no better one."""
    node, _, layouts = arrangement
    product = product_of(node)
    if not product or type(product.op) not in ROLES or max(product.lanes) > 1:
        return
    if onednn.library() and not sums_of_many_pixels(product.op, node):
        return
    operands, block = (*node.inputs[:2], node), onednn.block()
    first, second, result = (
        block if role != "w" and x.shape[1] % block == 0 else 1
        for role, x in zip(ROLES[type(product.op)], operands, strict=True)
    )
    specs = [x.spec for x in node.inputs]
    blocked = layouts_of(product.op, (first, second, result), [x.shape for x in specs], node.shape)
    inner = arrangement_of(product.op, product.activation, specs, constants_of(node), blocked)
    for generator in (winograd.candidates, direct.candidates):
        for candidate in generator(inner, threads):
            make = partial(_between_reorders, node, inner.node, candidate, threads)
            name = f"{candidate.name} with reorders"
            yield replace(candidate, name=name, layouts=layouts, make=make)


def _between_reorders(
    node: Node, inner: Node, candidate: Candidate, threads: int
) -> ConvertedKernel:
    """Return the kernel of a node in nchw: a candidate for blocks between reorders."""
    pairs = [(x.spec, b.spec) for x, b in zip(node.inputs, inner.inputs, strict=True)]
    before = [_reorder(x, b, b, threads) for x, b in pairs]
    after = [_reorder(inner.spec, node.spec, inner.spec, threads)]
    return ConvertedKernel(before, candidate.kernel, after, "with reorders")


def _reorder(source: Spec, target: Spec, blocked: Spec, threads: int) -> Conversion | None:
    if source == target:
        return None
    node = Reorder((*target.shape[4:], 1)[0])(*placeholders([source]))
    kernel = native_kernel(node, [source.strides], threads)
    assert kernel is not None, "every reorder to or from nchw has a kernel"
    return Conversion(kernel, blocked)

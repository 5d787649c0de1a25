"""Which kernel of C text computes a node."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigraph.devices.cpu import argmax, normalization, one_hot, pooling
from minigraph.devices.cpu.kernel import (
    KernelCall,
    NativeKernel,
    Place,
    TogetherKernel,
    cache_bytes,
    threads_for,
)
from minigraph.devices.placement import placements
from minigraph.graph import Copy, Node, Op, Shape, Spec
from minigraph.jit.c.text import text
from minigraph.jit.domain import Unfit
from minigraph.jit.expression import c_type, literal
from minigraph.jit.fused import Fused, Together, meaning
from minigraph.jit.kernel import SpecialisedKernel, specialise
from minigraph.jit.small_float import SMALL_FLOATS
from minigraph.jit.source import KernelSource
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.reduction import Reduction
from minigraph.ops.shape import Concat, Pad, Reshape

WRITTEN: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {
    **argmax.KERNELS,
    **normalization.KERNELS,
    **one_hot.KERNELS,
    **pooling.KERNELS,
}


def kernel(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel | None:
    """Return the kernel for `node`, or None if no pattern fits."""
    specs = [*(x.spec for x in node.inputs), *node.specs]
    if not all(s.size for s in specs):
        return None
    if isinstance(node.op, Together):
        return _together(node, strides, threads)
    threads = threads_for(max(s.size for s in specs), threads)
    found: tuple[KernelCall, SpecialisedKernel] | None
    small = not SMALL_FLOATS.isdisjoint(s.dtype for s in specs)
    if type(node.op) in WRITTEN and not small:
        return WRITTEN[type(node.op)](node.op, node, threads)
    if isinstance(node.op, Elementwise | Copy | Reduction | Fused) or node.op.composed:
        found = _call(node.op, specs[: len(node.inputs)], strides, threads)
    elif isinstance(node.op, Reshape):  # of what is not contiguous: it copies
        found = _call(Copy(), specs[:1], strides, threads)
    elif isinstance(node.op, Pad | Concat):
        return _parts(node, strides, threads)
    else:
        return None
    if found is None:
        return None
    call, made = found
    return NativeKernel(node, [call], made.scratch(threads), (True,) * len(strides), made.inplace)


@functools.lru_cache(4096)
def _specialised(
    op: Op, inputs: tuple[Spec, ...], strides: tuple[Shape, ...], target: Shape | None
) -> tuple[SpecialisedKernel, KernelSource, int] | None:
    """Return the kernel of an op, its text, and the bytes of its largest output."""
    graph = meaning(op, inputs)
    try:
        made = specialise(graph, strides, None if target is None else (target,))
    except Unfit:
        return None
    support, body = text(made.pattern)
    return made, KernelSource(body, support), max(y.spec.nbytes for y in graph.outputs)


def _call(
    op: Op,
    inputs: Sequence[Spec],
    strides: Sequence[Shape],
    threads: int,
    target: tuple[Shape, int] | None = None,
) -> tuple[KernelCall, SpecialisedKernel] | None:
    """Return the call of a generated kernel, or None if there is none for these operands.

    target  strides, and the offset, of the only output, where it is part of a larger array
    """
    to_strides, to_offset = target or (None, 0)
    found = _specialised(op, tuple(inputs), tuple(strides), to_strides)
    if found is None:
        return None
    made, source, nbytes = found

    def block(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        places = [*ins, *((slot, offset + to_offset) for slot, offset in outs)]
        return made.block(threads, places, scratch, nbytes > cache_bytes() // 2)

    return KernelCall(source, block), made


def _together(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel | None:
    """Independent small ops in one launch: each on one thread."""
    assert isinstance(node.op, Together)
    calls: list[KernelCall] = []
    inplace: list[tuple[int, ...]] = []
    first_in, first_out = 0, 0
    for op, group in node.op.groups(node.inputs):
        last_in = first_in + len(group)
        found = _call(op, [x.spec for x in group], strides[first_in:last_in], 1)
        if found is None:
            return None
        call, made = found
        last_out = first_out + len(made.pattern.stores)
        calls.append(_part(call, slice(first_in, last_in), slice(first_out, last_out)))
        inplace += [tuple(first_out + i for i in outputs) for outputs in made.inplace]
        first_in, first_out = last_in, last_out
    elements = sum(s.size for s in node.specs)
    return TogetherKernel(node, calls, threads_for(elements, threads), inplace)


def _part(call: KernelCall, ins: slice, outs: slice) -> KernelCall:
    """Return a call that sees some of the kernel's operands."""
    return KernelCall(call.source, lambda i, o, scratch: call.block(i[ins], o[outs], scratch))


# ---------------------------------------------------------------- ops made of copies


def _parts(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel | None:
    """A concatenation or padding: copies into parts of the output."""
    calls = [_fill(node, threads)] if isinstance(node.op, Pad) else []
    targets = placements(node)
    for i, (x, s, target) in enumerate(zip(node.inputs, strides, targets, strict=True)):
        found = _call(Copy(), [x.spec], [s], threads, target)
        if found is None:
            return None
        calls.append(_part(found[0], slice(i, i + 1), slice(0, 1)))
    return NativeKernel(node, calls, strided=(True,) * len(strides))


_FILL = """
static void NAME_part(const int64_t *a, char **slots, int64_t begin, int64_t end) {
  %(T)s *y = (%(T)s *)(slots[a[3]] + a[4]);
  for (int64_t j = begin; j < end; j++) y[j] = %(value)s;
}
int NAME(const int64_t *a, char **slots) {
  mg_share(NAME_part, a, slots);
  return 0;
}
"""


def _fill(node: Node, threads: int) -> KernelCall:
    assert isinstance(node.op, Pad)
    value = literal(np.array(node.op.value).astype(node.dtype)[()])
    text = _FILL % {"T": c_type(node.dtype), "value": value}

    def block(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        return [threads, 1, node.size, *outs[0]]

    return KernelCall(KernelSource(text), block)

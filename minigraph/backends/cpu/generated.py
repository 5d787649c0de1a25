"""Which kernel of C text computes a node."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigraph.backends.cpu import normalization, one_hot, pooling
from minigraph.backends.cpu.compiler import Source
from minigraph.backends.cpu.native import (
    Call,
    NativeKernel,
    Place,
    cache_bytes,
    threads_for,
)
from minigraph.graph import Copy, Node, Op, Shape, Spec
from minigraph.jit import elementwise, reduction
from minigraph.jit.expression import c_type, expressible
from minigraph.jit.prelude import MAX_RANK
from minigraph.jit.space import broadcast, collapse
from minigraph.ops.elementwise import Elementwise, kind
from minigraph.ops.reduction import Reduction
from minigraph.ops.shape import Concat, Pad, Reshape
from minigraph.program import dense

WRITTEN: dict[type[Op], Callable[[Any, Node, int], NativeKernel | None]] = {
    **normalization.KERNELS,
    **one_hot.KERNELS,
    **pooling.KERNELS,
}


def kernel(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel | None:
    """Return the kernel for `node`, or None if no pattern fits."""
    specs = [*(x.spec for x in node.inputs), *node.specs]
    if not expressible(*(s.dtype for s in specs)) or not all(s.size for s in specs):
        return None
    threads = threads_for(max(s.size for s in specs), threads)
    if isinstance(node.op, Elementwise | Copy | Reshape):
        return _elementwise(node, strides, threads)
    if isinstance(node.op, Reduction):
        return _reduction(node, strides, threads)
    if isinstance(node.op, Pad | Concat):
        return _parts(node, strides, threads)
    make = WRITTEN.get(type(node.op))
    return make and make(node.op, node, threads)


def _all(node: Node) -> tuple[bool, ...]:
    """Generated kernels read any strides."""
    return (True,) * len(node.inputs)


def _elementwise(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel | None:
    # A reshape comes here when its input is no contiguous array: then it copies.
    copies = isinstance(node.op, Copy | Reshape)
    shape = node.inputs[0].shape if copies else node.shape
    made = _map(
        Copy() if copies else node.op,
        Spec(shape, node.dtype),
        [x.spec for x in node.inputs],
        strides,
        threads,
    )
    if made is None:
        return None
    inplace = [
        x.spec.nbytes == node.spec.nbytes and s == dense(node.spec) and x.shape == node.shape
        for x, s in zip(node.inputs, strides, strict=True)
    ]
    return NativeKernel(node, [made], strided=_all(node), inplace=inplace)


def _map(
    op: Op,
    output: Spec,
    inputs: Sequence[Spec],
    strides: Sequence[Shape],
    threads: int,
    target: tuple[Shape, int] | None = None,
) -> Call | None:
    """Return the call that applies `op`; `target`: other strides, and offset, of the output."""
    to_strides, to_offset = target or (dense(output), 0)
    runs = [broadcast(output.shape, x.shape, s) for x, s in zip(inputs, strides, strict=True)]
    space = collapse(output.shape, [*runs, to_strides])
    if len(space.extents) > MAX_RANK:
        return None
    pattern = elementwise.pattern(op, [x.dtype for x in inputs], output.dtype, space)
    source = _map_source(pattern)

    def block(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        ((slot, offset),) = outs
        places = [*ins, (slot, offset + to_offset)]
        return elementwise.block(space, threads, places, output.nbytes > cache_bytes() // 2)

    return Call(source, block)


@functools.lru_cache(4096)
def _map_source(pattern: elementwise.Pattern) -> Source:
    support, text = elementwise.text("NAME", pattern)
    return Source(text, tuple(support))


@functools.lru_cache(4096)
def _reduction_source(pattern: reduction.Pattern) -> Source:
    return Source(reduction.text(pattern))


def _reduction(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel | None:
    assert isinstance(node.op, Reduction)
    x = node.inputs[0].spec
    to = tuple(0 if axis in node.op.axes else s for axis, s in enumerate(dense(node.spec)))
    space = collapse(x.shape, [broadcast(x.shape, x.shape, strides[0]), to])
    shape = reduction.layout(node.op, space)
    if len(space.extents) > MAX_RANK:
        return None
    pattern = reduction.pattern(node.op, x.dtype, node.dtype, shape)

    def block(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        return reduction.block(shape, threads, [scratch, *ins, *outs])

    call = Call(_reduction_source(pattern), block)
    return NativeKernel(node, [call], reduction.scratch(shape, threads), strided=_all(node))


# ---------------------------------------------------------------- ops made of copies


def _parts(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel | None:
    """A concatenation or padding: copies into parts of the output."""
    calls: list[Call | None] = []
    steps = dense(node.spec)
    if isinstance(node.op, Pad):
        calls.append(_fill(node, threads))
        to = tuple(s * (i + 1) for s, i in zip(steps, node.op.interior, strict=True))
        offset = sum(s * low for s, low in zip(steps, node.op.low, strict=True))
        x = node.inputs[0].spec
        calls.append(_map(Copy(), x, [x], strides, threads, (to, offset)))
    else:
        assert isinstance(node.op, Concat)
        offset = 0
        for i, (part, s) in enumerate(zip(node.inputs, strides, strict=True)):
            made = _map(Copy(), part.spec, [part.spec], [s], threads, (steps, offset))
            calls.append(made and _only_input(made, i))
            offset += steps[node.op.axis] * part.shape[node.op.axis]
    found = [call for call in calls if call is not None]
    return NativeKernel(node, found, strided=_all(node)) if len(found) == len(calls) else None


def _only_input(call: Call, index: int) -> Call:
    """Return a call that reads just one of the kernel's inputs."""
    return Call(call.source, lambda ins, outs, scratch: call.block([ins[index]], outs, scratch))


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


def _fill(node: Node, threads: int) -> Call:
    assert isinstance(node.op, Pad)
    value = literal(np.array(node.op.value).astype(node.dtype)[()])
    text = _FILL % {"T": c_type(node.dtype), "value": value}

    def block(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        return [threads, 1, node.size, *outs[0]]

    return Call(Source(text), block)


def literal(value: Any) -> str:
    """Return a number so that C reads back the same one."""
    if kind(value.dtype) != "f":
        return str(int(value))
    if np.isfinite(value):
        return float(value).hex()
    return "NAN" if np.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"

"""Kernels of generated C: which pattern fits a node, and its argument block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minigraph.backends.cpu.compiler import Source
from minigraph.backends.reference import NumpyKernel
from minigraph.graph import Array, Copy, Node, Op, Shape, Spec
from minigraph.jit import elementwise, reduction
from minigraph.jit.expression import c_type, expressible
from minigraph.jit.prelude import MAX_RANK
from minigraph.jit.space import broadcast, collapse
from minigraph.ops.elementwise import Elementwise, kind
from minigraph.ops.indexing import OneHot
from minigraph.ops.reduction import Reduction
from minigraph.ops.shape import Concat, Pad, Reshape
from minigraph.program import dense

Place = tuple[int, int]  # slot and offset in bytes
THREADED = 32768  # elements from which on a second thread pays


@functools.cache
def cache_bytes() -> int:
    """Return the size of the last-level cache; 32 MiB where Linux does not say."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
    except OSError:
        return 32 << 20
    return int(text.rstrip("KM")) << (20 if text.endswith("M") else 10)


@dataclass(frozen=True)
class Call:
    """A kernel's text, and its argument block once the places of its operands are known.

    block(inputs, outputs, scratch)
    """

    source: Source
    block: Callable[[Sequence[Place], Sequence[Place], Place], list[int]]


class GeneratedKernel:
    """One or a few calls of generated kernels."""

    name = "c"

    def __init__(
        self, node: Node, calls: Sequence[Call], scratch: int = 0, inplace: Sequence[bool] = ()
    ) -> None:
        self.calls = calls
        self.scratch = scratch
        self.strided: Sequence[bool] = (True,) * len(node.inputs)
        self.inplace: Sequence[bool] = inplace or (False,) * len(node.inputs)
        self.refuses = isinstance(node.op, OneHot)
        self.meaning = NumpyKernel(node)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Compute in NumPy: where the compiler failed."""
        self.meaning.run(inputs, outputs, scratch)


def kernel(node: Node, strides: Sequence[Shape], threads: int) -> GeneratedKernel | None:
    """Return the kernel for `node`, or None if no pattern fits."""
    specs = [*(x.spec for x in node.inputs), *node.specs]
    if not expressible(*(s.dtype for s in specs)) or not all(s.size for s in specs):
        return None
    work = max(s.size for s in specs)
    threads = threads if work >= THREADED else 1
    if isinstance(node.op, Elementwise | Copy | Reshape):
        return _elementwise(node, strides, threads)
    if isinstance(node.op, Reduction):
        return _reduction(node, strides, threads)
    if isinstance(node.op, Pad | Concat):
        return _parts(node, strides, threads)
    if isinstance(node.op, OneHot) and strides == [dense(node.inputs[0].spec)]:
        return _one_hot(node)
    return None


def _elementwise(node: Node, strides: Sequence[Shape], threads: int) -> GeneratedKernel | None:
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
    return GeneratedKernel(node, [made], inplace=inplace)


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
    support, text = elementwise.text("NAME", pattern)

    def block(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        ((slot, offset),) = outs
        places = [*ins, (slot, offset + to_offset)]
        return elementwise.block(space, threads, places, output.nbytes > cache_bytes() // 2)

    return Call(Source(text, tuple(support)), block)


def _reduction(node: Node, strides: Sequence[Shape], threads: int) -> GeneratedKernel | None:
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

    call = Call(Source(reduction.text(pattern)), block)
    return GeneratedKernel(node, [call], reduction.scratch(shape, threads))


# ---------------------------------------------------------------- ops made of copies


def _parts(node: Node, strides: Sequence[Shape], threads: int) -> GeneratedKernel | None:
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
    return GeneratedKernel(node, found) if len(found) == len(calls) else None


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


_ONE_HOT = """
int NAME(const int64_t *a, char **slots) {
  const int64_t count = a[0], size = a[1];
  const %(T)s *label = (const %(T)s *)(slots[a[2]] + a[3]);
  %(R)s *y = (%(R)s *)(slots[a[4]] + a[5]);
  for (int64_t i = 0; i < count; i++)
    if ((int64_t)label[i] < 0 || (int64_t)label[i] >= size) return 1;
  memset(y, 0, count * size * sizeof(%(R)s));
  for (int64_t i = 0; i < count; i++) y[i * size + (int64_t)label[i]] = 1;
  return 0;
}
"""


def _one_hot(node: Node) -> GeneratedKernel:
    assert isinstance(node.op, OneHot)
    labels, size = node.inputs[0], node.op.size
    text = _ONE_HOT % {"T": c_type(labels.dtype), "R": c_type(node.dtype)}

    def block(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        return [labels.size, size, *ins[0], *outs[0]]

    return GeneratedKernel(node, [Call(Source(text), block)])

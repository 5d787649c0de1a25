"""Kernels of float32 for floats of 16 bits: of the ops that no text computes in those."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from minigraph.devices.cpu.kernel import CpuKernel, Linker, NativeCall, Operands, calls_of, texts_of
from minigraph.devices.reference import NumpyKernel
from minigraph.graph import Array, Node, Shape, Spec, aligned_empty, stand_ins
from minigraph.jit.small_float import FLOAT32, SMALL_FLOATS
from minigraph.jit.source import KernelSource
from minigraph.ops.elementwise import Astype
from minigraph.program import Kernel
from minigraph.program.steps import round_up

MakeKernel = Callable[[Node, Sequence[Shape]], Kernel | None]


class WidenedKernel(CpuKernel):
    """Copies of the inputs in float32, a kernel that reads them, and its results rounded.

    before  for each input the kernel that copies it; None where it is read as it is
    wide    computes the op of `node` from these
    after   for each result the kernel that rounds it; None where `wide` writes it
    """

    def __init__(
        self,
        node: Node,
        before: Sequence[Kernel | None],
        wide: Kernel,
        after: Sequence[Kernel | None],
    ) -> None:
        self.before = before
        self.wide = wide
        self.after = after
        self.maker = wide.maker
        self.algorithm = f"{wide.algorithm} in float32".strip()
        self.strided = [
            kernel is not None or wide.reads_strided(i) for i, kernel in enumerate(before)
        ]
        self.refuses = wide.refuses
        specs = [*(x.spec for x in node.inputs), *node.specs]
        sizes = [
            0 if kernel is None else round_up(FLOAT32.itemsize * spec.size)
            for kernel, spec in zip((*before, *after), specs, strict=True)
        ]
        self.offsets = [*itertools.accumulate(sizes, initial=0)]
        self.scratch = self.offsets[-1] + wide.scratch

    @property
    def texts(self) -> Sequence[KernelSource]:
        return [text for kernel in self._kernels() for text in texts_of(kernel)]

    def _kernels(self) -> list[Kernel]:
        return [kernel for kernel in (*self.before, self.wide, *self.after) if kernel]

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        slot, start = operands.scratch
        given = [*operands.inputs, *operands.outputs]
        casts = [*self.before, *self.after]
        places = [
            place if cast is None else (slot, start + offset)
            for place, cast, offset in zip(given, casts, self.offsets, strict=False)
        ]
        count, rest = len(self.before), (slot, start + self.offsets[-1])
        first: list[NativeCall] = []
        last: list[NativeCall] = []
        for i, cast in enumerate(casts):
            if cast is not None:
                pair = (given[i], places[i]) if i < count else (places[i], given[i])
                moved = Operands(pair[:1], pair[1:], rest)
                (first if i < count else last).extend(calls_of(cast, moved, linker))
        inner = Operands(places[:count], places[count:], rest)
        return [*first, *calls_of(self.wide, inner, linker), *last]

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Run the kernel inside on copies that NumPy makes, where the compiler failed."""
        given = [
            x if cast is None else x.astype(FLOAT32, order="C")
            for x, cast in zip(inputs, self.before, strict=True)
        ]
        made = [
            y if cast is None else aligned_empty(Spec(y.shape, FLOAT32))
            for y, cast in zip(outputs, self.after, strict=True)
        ]
        self.wide.run(given, made, scratch[self.offsets[-1] :])
        for y, wide, cast in zip(outputs, made, self.after, strict=True):
            if cast is not None:
                y[...] = wide


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
    given = stand_ins([_wide(x.spec) for x in node.inputs])
    whole = node.op.results(*given)[0].inputs[0] if node.is_bundle else node.op(*given)
    pairs = zip(node.inputs, given, strides, strict=True)
    return whole, [lies if x.spec == y.spec else y.spec.strides for x, y, lies in pairs]


def around(node: Node, strides: Sequence[Shape], wide: Kernel, make: MakeKernel) -> WidenedKernel:
    """Return the kernel of a node that reads floats of 16 bits, made of that of `wide_node`."""
    before = [
        make(Node(Astype(FLOAT32), (x,), (_wide(x.spec),)), [lies])
        if x.dtype in SMALL_FLOATS
        else None
        for x, lies in zip(node.inputs, strides, strict=True)
    ]
    after = [
        make(Node(Astype(y.dtype), stand_ins([_wide(y)]), (y,)), [_wide(y).strides])
        if y.dtype in SMALL_FLOATS
        else None
        for y in node.specs
    ]
    return WidenedKernel(node, before, wide, after)


def _wide(spec: Spec) -> Spec:
    return Spec(spec.shape, FLOAT32) if spec.dtype in SMALL_FLOATS else spec

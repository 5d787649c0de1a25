"""Loops: one generated function if the values are small, else a C loop around kernels.

The generated function keeps all values of a step on its stack.  The C loop runs the kernels of the
body for each slice.  Steps read and write slices in place.  A carry alternates between two buffers,
or a step reads it from the slice that the previous step wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from minigraph.devices.cpu.kernel import CpuKernel, Linker, NativeCall, Operands, Place
from minigraph.devices.cpu.straight_line import loop_text
from minigraph.devices.reference import NumpyKernel
from minigraph.graph import Array, Constant, Graph, Loop, Node, Shape, Spec, placeholders
from minigraph.jit.domain import NotFusible
from minigraph.jit.emitter import block, function
from minigraph.jit.source import KernelSource
from minigraph.ops.matmul import Matmul
from minigraph.program import Buffer, Kernel, MemorySpace, Program, round_up

Table = list[tuple[int, ...]]
CLOCK_TEXT, LOOP_TEXT = (Path(__file__).with_name(f"{n}.c").read_text() for n in ("clock", "loop"))
LOOP = KernelSource(CLOCK_TEXT + LOOP_TEXT)
MIN_BATCH, MAX_BATCH = 8, 1 << 14  # numbers of small products that one thread computes as a loop


def loop_kernel(node: Node, strides: Sequence[Shape], body: Program) -> Kernel:
    """Return the kernel of a loop: NumPy's if a step of the body has no native kernel."""
    with suppress(NotFusible):
        return StraightLineLoop(node, strides)
    for step in body.steps:
        if not isinstance(step.kernel, CpuKernel):
            why = f": {step.kernel.why_numpy}" if step.kernel.why_numpy else ""
            return NumpyKernel(node, f"NumPy computes {step.node.op.name} in its body{why}")
    return LoopKernel(node, strides, body)


def small_products(node: Node, strides: Sequence[Shape]) -> CpuKernel | None:
    """Return the kernel of a batch of small products as a loop, or None."""
    if (
        not isinstance(node.op, Matmul)
        or node.ndim != 3
        or not MIN_BATCH <= node.shape[0] <= MAX_BATCH
    ):
        return None
    if any(x.ndim != 3 or x.shape[0] != node.shape[0] for x in node.inputs[:2]):
        return None
    inner = placeholders([Spec(x.shape[i < 2 :], x.dtype) for i, x in enumerate(node.inputs)])
    loop = Loop(Graph(inner, (node.op(*inner),)), 0, 2, node.shape[0], False)
    with suppress(NotFusible):
        return StraightLineLoop(Node(loop, node.inputs, node.specs), strides)
    return None


class StraightLineLoop(CpuKernel):
    """A loop as one generated function.

    The argument block has the number of steps, the address of the loop's progress (see `clock.c`),
    and slot, offset and step of each operand, in bytes.
    """

    maker = "c"
    algorithm = "one function"

    def __init__(self, node: Node, strides: Sequence[Shape]) -> None:
        assert isinstance(node.op, Loop)
        self.node = node
        self.op = node.op
        end = self.op.carried + self.op.scanned
        sliced = [self.op.carried <= i < end for i, _ in enumerate(strides)]
        stacks = [y.spec.nbytes for y in self.op.graph.outputs[self.op.carried :]]
        self.steps = [s[0] if is_slice else 0 for s, is_slice in zip(strides, sliced, strict=True)]
        self.steps += [*(0 for _ in range(self.op.carried)), *stacks]
        self.strided = sliced
        self.sources = [_straight_line(self.op, strides)]

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        length, words = self.op.length, [self.op.length, linker.progress()]
        for (slot, offset), step in zip(
            (*operands.inputs, *operands.outputs), self.steps, strict=True
        ):
            first_slice = (length - 1) * step if self.op.reverse else 0
            words += [slot, offset + first_slice, -step if self.op.reverse else step]
        return [linker.call(self.sources[0], words)]


def _straight_line(op: Loop, strides: Sequence[Shape]) -> KernelSource:
    """Return the function of a loop; raise NotFusible if its values do not fit the stack."""
    loop = loop_text(op, strides)
    operands = range(len(strides) + len(op.graph.outputs))
    pause = block(
        "if (t + 1 == clock.next_check && t + 1 < steps && NAME_must_pause(&clock))",
        *loop.results,
        "return NAME_pause(progress, t + 1, 0);",
    )
    text = function(
        "int NAME(const int64_t *a, char **slots)",
        [
            "const int64_t steps = a[0];",
            "int64_t *progress = (int64_t *)a[1], t = progress[2] ? progress[0] : 0;",
            *(f"char *const p{k} = slots[a[{3 * k + 2}]] + a[{3 * k + 3}];" for k in operands),
            *(f"const int64_t step{k} = a[{3 * k + 4}];" for k in operands),
            *loop.operands,
            "NAME_clock clock = NAME_start_clock(t);",
            "progress[2] = 0;",
            *block("for (; t < steps; t++)", *loop.step, *pause),
            *loop.results,
            "return 0;",
        ],
    )
    return KernelSource(CLOCK_TEXT + text, loop.support)


class LoopKernel(CpuKernel):
    """A loop in C around the kernels of its body."""

    maker = "c"
    algorithm = "loop"
    body: Program

    def __init__(self, node: Node, strides: Sequence[Shape], body: Program) -> None:
        assert isinstance(node.op, Loop)
        self.node = node
        self.op = node.op
        self.body = body
        self.validates_input = any(step.kernel.validates_input for step in body.steps)
        self.threads = max((step.kernel.threads for step in body.steps), default=1)
        end = self.op.carried + self.op.scanned
        self.strides = [s[0] for s in strides[self.op.carried : end]]
        self.strided = [self.op.carried <= i < end for i in range(len(node.inputs))]
        self.carries = body.outputs[: self.op.carried]
        self.results = body.outputs[self.op.carried :]
        result_buffers = {view.buffer for view in self.results}
        # Offset of the two buffers of each carry that is not also a result of every step.
        self.double_buffers: dict[Buffer, int] = {}
        self.scratch = round_up(body.arena_bytes)
        for view in self.carries:
            if view.buffer not in result_buffers:
                self.double_buffers[view.buffer] = self.scratch
                self.scratch += 2 * round_up(view.spec.nbytes)
        self.constants: dict[Buffer, Array] = {}
        for buffer in (b for b in body.buffers if b.space is MemorySpace.CONSTANT):
            assert buffer.node is not None and isinstance(buffer.node.op, Constant)
            self.constants[buffer] = np.ascontiguousarray(buffer.node.op.value)

    @property
    def texts(self) -> Sequence[KernelSource]:
        return [LOOP, *(text for step in self.body.steps for text in step.kernel.texts)]

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        slot = {buffer: i for i, buffer in enumerate(self.body.buffers)}
        rows: list[NativeCall] = []
        for step in self.body.steps:
            inputs, outputs = (
                [(slot[view.buffer], view.offset) for view in views]
                for views in (step.inputs, step.outputs)
            )
            assert isinstance(step.kernel, CpuKernel), "see `loop_kernel`"
            places = Operands(inputs, outputs, (slot[step.scratch], 0))
            rows += step.kernel.calls(places, linker)
        # The buffers' slots are followed by one for each carry, used if no kernel reads it.
        slots = np.zeros(len(slot) + len(self.carries), np.int64)
        for buffer, value in self.constants.items():
            slots[slot[buffer]] = value.ctypes.data
        fixed, sliced, carries = self._tables(slot, operands)
        words = [self.op.length, linker.store_words(rows), len(rows), linker.store_words(slots)]
        words += [len(fixed), len(sliced), len(carries), linker.progress()]
        for table in (fixed, sliced, carries):
            words += [word for row in table for word in row]
        return [linker.call(LOOP, words)]

    def _tables(self, slot: dict[Buffer, int], operands: Operands) -> list[Table]:
        """Return the rows of the three tables: see `loop.c`."""
        op = self.op
        inputs = dict(zip(op.graph.inputs, operands.inputs, strict=True))
        slot_of = {b.node: slot[b] for b in self.body.inputs}
        outer, scratch = operands.scratch
        fixed: Table = [
            (slot[b], outer, scratch + b.offset)
            for b in self.body.buffers
            if b.space is MemorySpace.ARENA
        ]
        end = op.carried + op.scanned
        fixed += [(slot_of[x], *inputs[x]) for x in op.graph.inputs[end:] if x in slot_of]
        sliced: Table = []
        for x, stride in zip(op.graph.inputs[op.carried : end], self.strides, strict=True):
            if x in slot_of:
                sliced.append((slot_of[x], *self._slices(inputs[x], stride)))
        stacks = operands.outputs[op.carried :]
        for view, place in zip(self.results, stacks, strict=True):
            sliced.append((slot[view.buffer], *self._slices(place, view.spec.nbytes)))
        carries: Table = []
        for i, (x, view) in enumerate(zip(op.graph.inputs, self.carries, strict=False)):
            offset = self.double_buffers.get(view.buffer)
            buffers = (outer, scratch + offset) if offset is not None else (-1, 0)
            places = (*inputs[x], *operands.outputs[i], *buffers)
            size = view.spec.nbytes
            carries.append(
                (slot_of.get(x, len(slot) + i), slot[view.buffer], *places, size, round_up(size))
            )
        return [fixed, sliced, carries]

    def _slices(self, place: Place, stride: int) -> tuple[int, int, int]:
        """Return slot, offset and stride of slices outside of the loop, in execution order."""
        slot, offset = place
        if self.op.reverse:
            return slot, offset + (self.op.length - 1) * stride, -stride
        return slot, offset, stride

"""From graph to program: a flat list of steps on fixed buffers, and the plan of their memory.

`lower` turns every node into a step, or into nothing where its result is a view of a buffer that is
there already.  `plan` gives each intermediate a place in one arena by its lifetime, so that a call
allocates nothing but the arrays that it returns.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np

from minigraph.graph import (
    Array,
    Constant,
    Copy,
    Graph,
    Input,
    Item,
    Node,
    Parameter,
    Shape,
    Spec,
)
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.shape import Reshape, StopGradient

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


class Home(Enum):
    """Whose memory a buffer is."""

    ARENA = "arena"
    INPUT = "input"
    OUTPUT = "output"
    PARAMETER = "parameter"
    CONSTANT = "constant"


@dataclass(eq=False)
class Buffer:
    """A piece of contiguous memory.  In the arena it lives from step `first` to step `last`.

    successor  the buffer that takes its memory over at step `last`
    """

    home: Home
    nbytes: int
    node: Node | None = None  # the input, parameter or constant that it holds
    first: int = 0
    last: int = 0
    offset: int = 0
    successor: Buffer | None = None


@dataclass(frozen=True, eq=False)
class View:
    """An array in a buffer."""

    buffer: Buffer
    spec: Spec
    offset: int  # bytes
    strides: Shape  # bytes

    @property
    def contiguous(self) -> bool:
        return self.strides == dense(self.spec) or self.spec.size <= 1

    def array(self, memory: Array) -> Array:
        """Return the NumPy array in `memory`, the bytes of the buffer."""
        return np.ndarray(self.spec.shape, self.spec.dtype, memory, self.offset, self.strides)


class Kernel(Protocol):
    """One way to compute the results of one node.

    name     what computes it, for reports: "numpy", "c", "onednn jit:avx2", ...
    scratch  bytes of memory that it needs while it runs
    strided  which of its inputs may be views that are not contiguous
    inplace  which of its inputs the output may overwrite
    refuses  whether the values of its inputs may not fit, such as a label out of range
    """

    name: str
    scratch: int
    strided: Sequence[bool]
    inplace: Sequence[bool]
    refuses: bool

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Compute `outputs`, which are contiguous, from `inputs`.

        Raises GraphError if the values of the inputs do not fit, such as a label out of range.
        """


Memory = Mapping["Buffer", Array]  # the bytes of each buffer


class Executor(Protocol):
    """A program bound to memory.  `changing` is the memory that differs between calls."""

    @property
    def launches(self) -> int:
        """Native calls from Python per call."""

    def __call__(self, changing: Memory) -> None:
        """Run all steps.  Raises GraphError if the values of an input do not fit."""

    def profile(self, changing: Memory) -> list[Timing]:
        """Run all steps one by one, and return when each began and how long it took."""


class Backend(Protocol):
    """A device: what computes there, and with which settings it was opened."""

    device: str
    versions: Mapping[str, str]  # of the libraries that it uses

    def kernel(self, node: Node, strides: Sequence[Shape]) -> Kernel:
        """Return the kernel for `node`, whose inputs have these strides in bytes."""

    def bind(self, program: Program, memory: Memory) -> Executor:
        """Return what runs the program.

        `memory` holds the buffers that stay where they are between calls.
        """


@dataclass(frozen=True, eq=False)
class Step:
    """A kernel with its operands.  `scratch` is memory of the arena that only this step uses."""

    node: Node
    kernel: Kernel
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    scratch: Buffer


class Timing(NamedTuple):
    """When a step, or a part of it, began (seconds of `time.perf_counter`) and how long it took."""

    step: Step
    start: float
    seconds: float


@dataclass(eq=False)
class Program:
    """What a compiled function executes.

    outputs  views of OUTPUT buffers, or of buffers that have to be copied for the caller
    updates  after the last step, each view is copied to its parameter; others are made in place
    """

    graph: Graph
    steps: list[Step] = field(default_factory=list)
    outputs: list[View] = field(default_factory=list)
    updates: list[tuple[Parameter, View]] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    arena_bytes: int = 0

    @property
    def unplanned_bytes(self) -> int:
        """What the arena would take if no memory were used twice."""
        return sum(_round_up(b.nbytes) for b in self.buffers if b.home is Home.ARENA)


def dense(spec: Spec) -> Shape:
    """Return the strides, in bytes, of a C-contiguous array."""
    strides, step = [], spec.dtype.itemsize
    for n in reversed(spec.shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def lower(graph: Graph, results: int, updates: Sequence[Parameter], backend: Backend) -> Program:
    """Return the program for `graph`.

    The first `results` outputs are the function's results; the rest are the new values of
    `updates`, in this order.
    """
    order = schedule(graph, results)
    program = Program(graph)
    lowering = _Lowering(program, backend, set(map(_origin, graph.outputs[:results])))
    for node in order:
        lowering.node(node)
    program.outputs = [lowering.views[y][0] for y in graph.outputs[:results]]
    values = [lowering.value(y) for y in graph.outputs[results:]]
    program.updates = list(zip(updates, values, strict=True))
    for view in (*program.outputs, *values):
        view.buffer.last = len(program.steps)
    update_in_place(program)
    share_in_place(program)
    plan(program)
    return program


def schedule(graph: Graph, results: int) -> list[Node]:
    """Return the nodes in the order in which they are to run.

    That is the order in which they were made, so a gradient is used up soon after it is there;
    only the tail, elementwise ops on whose results nothing but updates depends, moves forward to
    where its inputs are there, so that no gradient waits for the end of the backward pass.
    """
    order = sorted(graph, key=lambda node: node.turn)
    tail = set(graph.outputs[results:]) - set(graph.outputs[:results])
    users = graph.users()
    for node in reversed(order):
        if users[node] and not all(user in tail for user in users[node]):
            tail.discard(node)
        elif (users[node] or node in tail) and isinstance(node.op, Elementwise | Reshape):
            tail.add(node)
        else:
            tail.discard(node)
    tail -= set(graph.outputs[:results])
    start = (-1, -1)
    turn: dict[Node, tuple[int, int]] = {}
    for node in order:
        ready = max((turn[x] for x in node.inputs), default=start)
        moves = node in tail or not node.inputs
        turn[node] = ready if moves else max(node.turn, ready)
    return sorted(order, key=lambda node: turn[node])  # stable: equal turns keep their order


def update_in_place(program: Program) -> None:
    """Let steps write new values of parameters where the parameters are.

    Allowed where nothing reads the old value later, and where no later step can refuse its input:
    a call that fails must leave all parameters as they were.
    """
    last_refusal = max((i for i, s in enumerate(program.steps) if s.kernel.refuses), default=-1)
    returned = {view.buffer for view in program.outputs}
    current = {b.node: b for b in program.buffers if b.home is Home.PARAMETER}
    copied = []
    for parameter, view in program.updates:
        new, old = view.buffer, current.get(parameter)
        made_here = new.home is Home.ARENA and view.contiguous and new.nbytes == view.spec.nbytes
        if (
            made_here
            and new.first > last_refusal
            and (old is None or (old not in returned and _reads_end(program, old, new)))
        ):
            new.home, new.node = Home.PARAMETER, parameter
        else:
            copied.append((parameter, view))
    program.updates = copied


def _reads_end(program: Program, old: Buffer, new: Buffer) -> bool:
    """Whether the step that writes `new` may overwrite `old`, which no later step reads."""
    return old.last < new.first or (old.last == new.first and _overwrites(program, old, new))


def _overwrites(program: Program, old: Buffer, new: Buffer) -> bool:
    """Whether the step that makes `new` reads `old` only at the place where it then writes."""
    step = program.steps[new.first]
    reads = [i for i, view in enumerate(step.inputs) if view.buffer is old]
    return (
        len(step.outputs) == 1
        and step.outputs[0].buffer is new
        and all(step.kernel.inplace[i] and step.inputs[i].offset == 0 for i in reads)
        and old.nbytes == new.nbytes
    )


def share_in_place(program: Program) -> None:
    """Let the output of a step take the memory of an input that is read there for the last time."""
    for now, step in enumerate(program.steps):
        for output in step.outputs:
            new = output.buffer
            for view in step.inputs:
                old = view.buffer
                if (
                    new.home is old.home is Home.ARENA
                    and old.last == now
                    and old.successor is None
                    and new.nbytes
                    and _overwrites(program, old, new)
                ):
                    old.successor = new
                    break


def _origin(node: Node) -> tuple[Node, int]:
    """The node, and which of its results, whose memory holds the same elements as `node`."""
    while isinstance(node.op, Reshape | StopGradient):
        node = node.inputs[0]
    return (node.inputs[0], node.op.index) if isinstance(node.op, Item) else (node, 0)


class _Lowering:
    """The state of `lower`: where the results of the nodes so far are."""

    def __init__(self, program: Program, backend: Backend, results: set[tuple[Node, int]]) -> None:
        self.program = program
        self.backend = backend
        self.results = results
        self.views: dict[Node, tuple[View, ...]] = {}

    def buffer(self, home: Home, nbytes: int, node: Node | None = None) -> Buffer:
        now = len(self.program.steps)
        made = Buffer(home, nbytes, node, now, now)
        self.program.buffers.append(made)
        return made

    def new_view(self, home: Home, spec: Spec, node: Node | None = None) -> View:
        return View(self.buffer(home, spec.nbytes, node), spec, 0, dense(spec))

    def node(self, node: Node) -> None:
        if isinstance(node.op, Item):
            self.views[node] = (self.views[node.inputs[0]][node.op.index],)
        elif isinstance(node, Parameter):
            self.views[node] = (self.new_view(Home.PARAMETER, node.spec, node),)
        elif isinstance(node.op, Constant):
            self.views[node] = (self.new_view(Home.CONSTANT, node.spec, node),)
        elif isinstance(node.op, Input):
            self.views[node] = (self.new_view(Home.INPUT, node.spec, node),)
        elif not self.alias(node):
            self.step(node)

    def alias(self, node: Node) -> bool:
        """Whether the result is a view of the first input; then it needs no step."""
        if not node.op.is_view:
            return False
        (view,) = self.views[node.inputs[0]]
        offset = 0
        if view.spec.size:
            # Ask NumPy: apply the op to an array that has the strides but is never read.
            memory = np.empty(_extent(view), np.uint8)
            before = np.ndarray(view.spec.shape, view.spec.dtype, memory, _lead(view), view.strides)
            after = node.op.forward(before)
            if not np.may_share_memory(after, memory):
                return False
            offset = after.__array_interface__["data"][0] - memory.ctypes.data - _lead(view)
            strides = after.strides
        else:
            strides = dense(node.spec)
        self.views[node] = (View(view.buffer, node.spec, view.offset + offset, strides),)
        return True

    def step(self, node: Node) -> None:
        views = [self.views[x][0] for x in node.inputs]
        kernel = self.backend.kernel(node, [v.strides for v in views])
        for i, view in enumerate(views):
            if not (kernel.strided[i] or view.contiguous):
                views[i] = self.contiguous(node.inputs[i], view)
        outputs = tuple(
            self.new_view(Home.OUTPUT if (node, i) in self.results else Home.ARENA, spec)
            for i, spec in enumerate(node.specs)
        )
        self.emit(node, kernel, tuple(views), outputs)
        self.views[node] = outputs

    def value(self, node: Node) -> View:
        """Return where the new value of a parameter is: not in a parameter, which may change."""
        (view,) = self.views[node]
        return self.contiguous(node, view) if view.buffer.home is Home.PARAMETER else view

    def contiguous(self, node: Node, view: View) -> View:
        """Append a step that copies `view`, and return the copy."""
        with_copy = Node(Copy(), (node,), (view.spec,))
        copied = self.new_view(Home.ARENA, view.spec)
        kernel = self.backend.kernel(with_copy, [view.strides])
        self.emit(with_copy, kernel, (view,), (copied,))
        return copied

    def emit(
        self, node: Node, kernel: Kernel, inputs: tuple[View, ...], outputs: tuple[View, ...]
    ) -> None:
        now = len(self.program.steps)
        scratch = self.buffer(Home.ARENA, kernel.scratch)
        for view in (*inputs, *outputs):
            view.buffer.last = now
        self.program.steps.append(Step(node, kernel, inputs, outputs, scratch))


def _lead(view: View) -> int:
    """Bytes between the lowest element of a view and its first one: steps may be negative."""
    sizes = zip(view.spec.shape, view.strides, strict=True)
    return sum(-s * (n - 1) for n, s in sizes if s < 0)


def _extent(view: View) -> int:
    """Bytes between the ends of a view."""
    sizes = zip(view.spec.shape, view.strides, strict=True)
    return sum(abs(s) * (n - 1) for n, s in sizes) + view.spec.dtype.itemsize


def plan(program: Program) -> None:
    """Give every buffer of the arena an offset; buffers that live at the same time do not overlap.

    Walks through time and takes the smallest hole that fits (best fit).
    """
    buffers = [b for b in program.buffers if b.home is Home.ARENA and b.nbytes]
    heirs = {b.successor for b in buffers if b.successor}
    ends: dict[int, list[Buffer]] = {}
    for b in buffers:
        if b.successor is None:
            ends.setdefault(b.last, []).append(b)
    holes = _Holes()
    time = 0
    for b in sorted(buffers, key=lambda b: (b.first, -b.nbytes)):
        while time < b.first:
            for dead in ends.get(time, ()):
                holes.release(dead.offset, _round_up(dead.nbytes))
            time += 1
        if b not in heirs:
            b.offset = holes.take(_round_up(b.nbytes))
        if b.successor:
            b.successor.offset = b.offset
    program.arena_bytes = holes.end


def _round_up(nbytes: int) -> int:
    return math.ceil(nbytes / ALIGNMENT) * ALIGNMENT


class _Holes:
    """The free pieces of an arena that grows at its end: sorted (offset, size), none adjacent."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []
        self.end = 0

    def take(self, size: int) -> int:
        fitting = [hole for hole in self.free if hole[1] >= size]
        if fitting:
            offset, length = min(fitting, key=lambda hole: hole[1])
            at = bisect.bisect_left(self.free, (offset, length))
            self.free[at : at + 1] = [(offset + size, length - size)] if length > size else []
            return offset
        if self.free and sum(self.free[-1]) == self.end:
            offset, _ = self.free.pop()  # the last hole grows beyond the end
        else:
            offset = self.end
        self.end = offset + size
        return offset

    def release(self, offset: int, size: int) -> None:
        at = bisect.bisect_left(self.free, (offset, size))
        if at < len(self.free) and self.free[at][0] == offset + size:
            size += self.free.pop(at)[1]
        if at and sum(self.free[at - 1]) == offset:
            at -= 1
            offset, length = self.free.pop(at)
            size += length
        self.free.insert(at, (offset, size))

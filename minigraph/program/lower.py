"""Lower a graph to a program: steps in execution order, on views of buffers.

Each node becomes a step, unless its result is a view of an existing buffer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from minigraph.errors import CompileError
from minigraph.graph import (
    Constant,
    Copy,
    Graph,
    Input,
    Item,
    Loop,
    Node,
    Parameter,
    Shape,
    Spec,
    in_place_of,
)
from minigraph.jit.fused import Fused, HorizontalFusion
from minigraph.ops.elementwise import Elementwise
from minigraph.passes.overlap import AwaitCollective
from minigraph.program import Backend, Buffer, Choice, Kernel, MemorySpace, Program, Step, View
from minigraph.program.memory import plan

Order = tuple[int, int]
Views = tuple[View, ...]
Choose = Callable[[Node, Sequence[Shape]], Choice | None]


def lower(
    graph: Graph,
    results: int,
    updates: Sequence[Parameter],
    backend: Backend,
    choose: Choose,
    pinned: AbstractSet[Node] = frozenset(),
) -> Program:
    """Return the program for `graph`; `plan` then assigns offsets to its buffers.

    choose  returns the choice for a node with inputs of these strides, None if it has none
    pinned  nodes that run in creation order, even if they could move

    The first `results` outputs are the function's results; the others are the new values of
    `updates`, in this order.
    """
    lowering = _Lowering(graph, results, backend, choose, {}, pinned)
    program = lowering.program
    program.outputs = [lowering.result(y) for y in graph.outputs[:results]]
    values = [lowering.value(y) for y in graph.outputs[results:]]
    program.updates = list(zip(updates, values, strict=True))
    for view in (*program.outputs, *values):
        view.buffer.last = len(program.steps)
    return program


def lower_body(op: Loop, strides: Sequence[Shape], backend: Backend, choose: Choose) -> Program:
    """Return the program of one step of a loop, with memory planned.

    strides  of the loop's inputs, which the step's slices of scanned inputs inherit

    Each result and each carry has a separate buffer, but a carry may share that of a result.
    """
    last = op.carried + op.scanned
    slices = zip(op.graph.inputs[op.carried : last], strides[op.carried : last], strict=True)
    inner = {x: steps[1:] for x, steps in slices}
    lowering = _Lowering(op.graph, len(op.graph.outputs), backend, choose, inner)
    results = lowering.separate(op.graph.outputs[op.carried :])
    program = lowering.program
    program.outputs = [*lowering.separate(op.graph.outputs[: op.carried]), *results]
    return plan(program, inner)


class _Lowering:
    """A program under construction, and the views that hold the results of its nodes.

    strides  of inputs that are not contiguous
    """

    def __init__(
        self,
        graph: Graph,
        results: int,
        backend: Backend,
        choose: Choose,
        strides: Mapping[Node, Shape],
        pinned: AbstractSet[Node] = frozenset(),
    ) -> None:
        self.program = Program(graph)
        self.backend = backend
        self.choose = choose
        self.strides = strides
        self.results = set(map(origin, graph.outputs[:results]))
        for y in graph.outputs[:results]:  # a reshape of a strided view is a copy
            while y.op.keeps_order:
                self.results.add((y, 0))
                y = y.inputs[0]
        self.views: dict[Node, Views] = {}
        for node in execution_order(graph, results, pinned):
            self.node(node)

    def buffer(self, space: MemorySpace, nbytes: int, node: Node | None = None) -> Buffer:
        now = len(self.program.steps)
        buffer = Buffer(space, nbytes, node, now, now)
        self.program.buffers.append(buffer)
        return buffer

    def new_view(self, space: MemorySpace, spec: Spec, node: Node | None = None) -> View:
        return View(self.buffer(space, spec.nbytes, node), spec, 0, spec.strides)

    def node(self, node: Node) -> None:
        if isinstance(node.op, Item):
            self.views[node] = (self.views[node.inputs[0]][node.op.index],)
        elif isinstance(node, Parameter):
            self.views[node] = (self.new_view(MemorySpace.PARAMETER, node.spec, node),)
        elif isinstance(node.op, Constant):
            self.views[node] = (self.new_view(MemorySpace.CONSTANT, node.spec, node),)
        elif isinstance(node.op, Input):
            view = self.new_view(MemorySpace.INPUT, node.spec, node)
            strides = self.strides.get(node, node.spec.strides)
            self.views[node] = (View(view.buffer, node.spec, 0, strides),)
        elif not self.alias(node):
            self.step(node)

    def alias(self, node: Node) -> bool:
        """Return whether the result is a view of the first input, and then register the view."""
        if not node.op.is_view:
            return False
        (view,) = self.views[node.inputs[0]]
        offset = 0
        if view.spec.size:
            # Apply the op to an uninitialised array: NumPy computes the strides.
            try:
                memory = np.empty(view.extent, np.uint8)
            except MemoryError:  # `bind` will raise a better error for the whole program
                return False
            before = np.ndarray(view.spec.shape, view.spec.dtype, memory, view.lead, view.strides)
            after = node.op.forward(before)
            if after.shape != node.shape:
                name = f"{node.op.name} {node.source}"
                raise CompileError(f"{name} is a view of {after.shape}, not {node.shape}")
            if not np.may_share_memory(after, memory):
                return False
            offset = after.__array_interface__["data"][0] - memory.ctypes.data - view.lead
            strides = after.strides
        else:
            strides = node.spec.strides
        self.views[node] = (View(view.buffer, node.spec, view.offset + offset, strides),)
        return True

    def step(self, node: Node) -> None:
        views = [self.views[x][0] for x in node.inputs]
        choice, kernel = self.choose_kernel(node, views)
        misaligned = [i for i, view in enumerate(views) if view.offset % kernel.alignment]
        if misaligned:
            for i in misaligned:
                views[i] = self.contiguous(node.inputs[i], views[i])
            choice, kernel = self.choose_kernel(node, views)  # the copies may have other strides
        for i, view in enumerate(views):
            if not (kernel.reads_strided(i) or view.contiguous):
                views[i] = self.contiguous(node.inputs[i], view)
        outputs = tuple(
            self.new_view(
                MemorySpace.OUTPUT if (node, i) in self.results else MemorySpace.ARENA, spec
            )
            for i, spec in enumerate(node.specs)
        )
        self.emit(node, kernel, tuple(views), outputs, choice)
        self.views[node] = outputs

    def choose_kernel(self, node: Node, views: Sequence[View]) -> tuple[Choice | None, Kernel]:
        """Return the choice and the kernel for a node with these inputs."""
        strides = [view.strides for view in views]
        if isinstance(node.op, Loop):
            body = lower_body(node.op, strides, self.backend, self.choose)
            return None, self.backend.loop(node, strides, body)
        choice = self.choose(node, strides)
        return choice, self.backend.kernel(node, strides, choice)

    def result(self, node: Node) -> View:
        """Return a contiguous view of a function's result."""
        (view,) = self.views[node]
        return view if view.contiguous else self.contiguous(node, view, MemorySpace.OUTPUT)

    def value(self, node: Node) -> View:
        """Return a contiguous view of a parameter's new value, outside of all parameters."""
        (view,) = self.views[node]
        usable = view.contiguous and view.buffer.space is not MemorySpace.PARAMETER
        return view if usable else self.contiguous(node, view)

    def separate(self, nodes: Sequence[Node]) -> list[View]:
        """Return views of outputs in distinct OUTPUT buffers; copy an output that shares one."""
        views: list[View] = []
        for node in nodes:
            (view,) = self.views[node]
            fills_buffer = view.contiguous and view.spec.nbytes == view.buffer.nbytes
            usable = view.buffer.space is MemorySpace.OUTPUT and fills_buffer
            if not usable or any(view.buffer is other.buffer for other in views):
                view = self.contiguous(node, view, MemorySpace.OUTPUT)
            view.buffer.last = len(self.program.steps)
            views.append(view)
        return views

    def contiguous(self, node: Node, view: View, space: MemorySpace = MemorySpace.ARENA) -> View:
        """Append a step that copies `view`, and return the copy."""
        with in_place_of(node):
            copy = Copy()(node)
        result = self.new_view(space, view.spec)
        self.emit(copy, self.backend.kernel(copy, [view.strides]), (view,), (result,), None)
        return result

    def emit(
        self, node: Node, kernel: Kernel, inputs: Views, outputs: Views, choice: Choice | None
    ) -> None:
        now = len(self.program.steps)
        scratch = self.buffer(MemorySpace.ARENA, kernel.scratch)
        for view in (*inputs, *outputs):
            view.buffer.last = now
        self.program.steps.append(Step(node, kernel, inputs, outputs, scratch, choice))


def execution_order(
    graph: Graph, results: int, pinned: AbstractSet[Node] = frozenset()
) -> dict[Node, Order]:
    """Return the nodes in execution order, inputs before their users, each with its time.

    results  number of outputs that the caller gets; the others are new values of parameters
    pinned   nodes that keep their time of creation

    Nodes run in creation order, with two exceptions.  Elementwise ops and fused kernels on which
    only updates depend (the tail) run as soon as their inputs are computed, so no gradient stays in
    memory until the end of the backward pass.  A wait for a collective runs as late as possible.
    """
    nodes = graph.by_order()
    tail = set(graph.outputs[results:]) - set(graph.outputs[:results])
    users = graph.users()
    for node in reversed(nodes):
        if node in pinned or not _moves(node) or not all(user in tail for user in users[node]):
            tail.discard(node)
        elif users[node]:
            tail.add(node)
    tail -= set(graph.outputs[:results])
    start = (-1, -1)
    first_uses = _first_uses(nodes, users)
    times: dict[Node, Order] = {}
    for node in nodes:
        ready = max((times[x] for x in node.inputs), default=start)
        if isinstance(node.op, AwaitCollective):
            times[node] = max(ready, first_uses.get(node, (sys.maxsize, node.order[1])))
        else:
            times[node] = ready if not node.inputs or node in tail else max(node.order, ready)
    for node in reversed(nodes):
        if node in tail and times[node] == start:  # it reads only parameters
            # A step counter runs last, after all reads of its old value, so it is updated in place.
            last = (sys.maxsize, node.order[1]) if all(s.size == 1 for s in node.specs) else start
            times[node] = min((times[user] for user in users[node]), default=last)
    return {node: times[node] for node in sorted(times, key=times.__getitem__)}  # a stable sort


def _first_uses(nodes: list[Node], users: dict[Node, list[Node]]) -> dict[Node, Order]:
    """Return for each node the first time at which a node that cannot move needs it, if any."""
    first_uses: dict[Node, Order] = {}
    for node in reversed(nodes):
        uses = [first_uses[user] for user in users[node] if user in first_uses]
        if not (_moves(node) or node.op.is_view or isinstance(node.op, AwaitCollective)):
            uses.append(node.order)
        if uses:
            first_uses[node] = min(uses)
    return first_uses


def _moves(node: Node) -> bool:
    return isinstance(node.op, Elementwise | Fused | HorizontalFusion | Item) or node.op.keeps_order


def origin(node: Node) -> tuple[Node, int]:
    """Return the node, and the index of its result, of which a chain of reshapes is a view."""
    while node.op.keeps_order:
        node = node.inputs[0]
    return (node.inputs[0], node.op.index) if isinstance(node.op, Item) else (node, 0)

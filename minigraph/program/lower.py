"""From graph to program: which steps, in which order, on which views.

Every node becomes a step, or nothing where its result is a view of a buffer that is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from minigraph.graph import Constant, Copy, Graph, Input, Item, Node, Parameter, Shape, Spec
from minigraph.jit.fused import Fused, Together
from minigraph.ops.elementwise import Elementwise
from minigraph.program import Backend, Buffer, Choice, Home, Kernel, Program, Step, View
from minigraph.program.memory import plan, share_in_place, update_in_place

Choose = Callable[[Node, Sequence[Shape]], Choice | None]


def lower(
    graph: Graph,
    results: int,
    updates: Sequence[Parameter],
    backend: Backend,
    choose: Choose,
) -> Program:
    """Return the program for `graph`.

    choose  returns the choice for a node whose inputs have these strides, None if there is none

    The first `results` outputs are the function's results; the rest are the new values of
    `updates`, in this order.
    """
    order = schedule(graph, results)
    program = Program(graph)
    returned = set(map(_origin, graph.outputs[:results]))
    lowering = _Lowering(program, backend, choose, returned)
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
    only the tail, elementwise ops and fused kernels on whose results nothing but updates depends,
    moves forward to where its inputs are there, so that no gradient waits for the end of the
    backward pass.
    """
    order = graph.by_turn()
    tail = set(graph.outputs[results:]) - set(graph.outputs[:results])
    users = graph.users()
    for node in reversed(order):
        if not _moves(node) or not all(user in tail for user in users[node]):
            tail.discard(node)
        elif users[node]:
            tail.add(node)
    tail -= set(graph.outputs[:results])
    start = (-1, -1)
    turn: dict[Node, tuple[int, int]] = {}
    for node in order:
        ready = max((turn[x] for x in node.inputs), default=start)
        moves = node in tail or not node.inputs
        turn[node] = ready if moves else max(node.turn, ready)
    for node in reversed(order):
        if node in tail and turn[node] == start:  # it needs nothing but parameters: no hurry
            turn[node] = min((turn[user] for user in users[node]), default=start)
    return sorted(order, key=lambda node: turn[node])  # stable: equal turns keep their order


def _moves(node: Node) -> bool:
    return isinstance(node.op, Elementwise | Fused | Together | Item) or node.op.keeps_order


def _origin(node: Node) -> tuple[Node, int]:
    """The node, and which of its results, whose memory holds the same elements as `node`."""
    while node.op.keeps_order:
        node = node.inputs[0]
    return (node.inputs[0], node.op.index) if isinstance(node.op, Item) else (node, 0)


class _Lowering:
    """The state of `lower`: where the results of the nodes so far are."""

    def __init__(
        self,
        program: Program,
        backend: Backend,
        choose: Choose,
        results: set[tuple[Node, int]],
    ) -> None:
        self.program = program
        self.backend = backend
        self.choose = choose
        self.results = results
        self.views: dict[Node, tuple[View, ...]] = {}

    def buffer(self, home: Home, nbytes: int, node: Node | None = None) -> Buffer:
        now = len(self.program.steps)
        made = Buffer(home, nbytes, node, now, now)
        self.program.buffers.append(made)
        return made

    def new_view(self, home: Home, spec: Spec, node: Node | None = None) -> View:
        return View(self.buffer(home, spec.nbytes, node), spec, 0, spec.strides)

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
            try:
                memory = np.empty(_extent(view), np.uint8)
            except MemoryError:  # the program needs more than there is, which binding it will say
                return False
            before = np.ndarray(view.spec.shape, view.spec.dtype, memory, _lead(view), view.strides)
            after = node.op.forward(before)
            if not np.may_share_memory(after, memory):
                return False
            offset = after.__array_interface__["data"][0] - memory.ctypes.data - _lead(view)
            strides = after.strides
        else:
            strides = node.spec.strides
        self.views[node] = (View(view.buffer, node.spec, view.offset + offset, strides),)
        return True

    def step(self, node: Node) -> None:
        views = [self.views[x][0] for x in node.inputs]
        choice, kernel = self.chosen(node, views)
        astray = [i for i, view in enumerate(views) if view.offset % kernel.alignment]
        if astray:
            for i in astray:
                views[i] = self.contiguous(node.inputs[i], views[i])
            choice, kernel = self.chosen(node, views)  # for other strides, perhaps
        for i, view in enumerate(views):
            if not (kernel.reads_strided(i) or view.contiguous):
                views[i] = self.contiguous(node.inputs[i], view)
        outputs = tuple(
            self.new_view(Home.OUTPUT if (node, i) in self.results else Home.ARENA, spec)
            for i, spec in enumerate(node.specs)
        )
        self.emit(node, kernel, tuple(views), outputs, choice)
        self.views[node] = outputs

    def chosen(self, node: Node, views: Sequence[View]) -> tuple[Choice | None, Kernel]:
        """Return the kernel for a node of such inputs, and the choice that it comes from."""
        strides = [view.strides for view in views]
        choice = self.choose(node, strides)
        return choice, self.backend.kernel(node, strides, choice)

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
        self,
        node: Node,
        kernel: Kernel,
        inputs: tuple[View, ...],
        outputs: tuple[View, ...],
        choice: Choice | None = None,
    ) -> None:
        now = len(self.program.steps)
        scratch = self.buffer(Home.ARENA, kernel.scratch)
        for view in (*inputs, *outputs):
            view.buffer.last = now
        self.program.steps.append(Step(node, kernel, inputs, outputs, scratch, choice))


def _lead(view: View) -> int:
    """Bytes between the lowest element of a view and its first one: steps may be negative."""
    sizes = zip(view.spec.shape, view.strides, strict=True)
    return sum(-s * (n - 1) for n, s in sizes if s < 0)


def _extent(view: View) -> int:
    """Bytes between the ends of a view."""
    sizes = zip(view.spec.shape, view.strides, strict=True)
    return sum(abs(s) * (n - 1) for n, s in sizes) + view.spec.dtype.itemsize

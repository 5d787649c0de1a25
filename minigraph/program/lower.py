"""From graph to program: which steps, in which order, on which views.

Every node becomes a step, or nothing where its result is a view of a buffer that is there already.
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
    stay: AbstractSet[Node] = frozenset(),
) -> Program:
    """Return the program for `graph`; `plan` then decides where its buffers lie.

    choose  returns the choice for a node whose inputs have these strides, None if there is none
    stay    nodes that run in the order in which they were made, whatever reads them

    The first `results` outputs are the function's results; the rest are the new values of
    `updates`, in this order.
    """
    lowering = _Lowering(graph, results, backend, choose, {}, stay)
    program = lowering.program
    program.outputs = [lowering.result(y) for y in graph.outputs[:results]]
    values = [lowering.value(y) for y in graph.outputs[results:]]
    program.updates = list(zip(updates, values, strict=True))
    for view in (*program.outputs, *values):
        view.buffer.last = len(program.steps)
    return program


def lower_body(op: Loop, strides: Sequence[Shape], backend: Backend, choose: Choose) -> Program:
    """Return the program for one step of a loop, with its plan of memory.

    strides  of the loop's inputs; of those that are sliced they count

    Each output is a buffer of its own, but a carry may be in that of a result.
    """
    last = op.carried + op.scanned
    slices = zip(op.graph.inputs[op.carried : last], strides[op.carried : last], strict=True)
    inner = {x: steps[1:] for x, steps in slices}
    lowering = _Lowering(op.graph, len(op.graph.outputs), backend, choose, inner)
    results = lowering.apart(op.graph.outputs[op.carried :])
    program = lowering.program
    program.outputs = [*lowering.apart(op.graph.outputs[: op.carried]), *results]
    return plan(program, inner)


class _Lowering:
    """The steps of a graph, and where the results of its nodes are.

    strides  of inputs that are not contiguous
    """

    def __init__(
        self,
        graph: Graph,
        results: int,
        backend: Backend,
        choose: Choose,
        strides: Mapping[Node, Shape],
        stay: AbstractSet[Node] = frozenset(),
    ) -> None:
        self.program = Program(graph)
        self.backend = backend
        self.choose = choose
        self.strides = strides
        self.results = set(map(origin, graph.outputs[:results]))
        for y in graph.outputs[:results]:  # a reshape of what is not contiguous is a copy
            while y.op.keeps_order:
                self.results.add((y, 0))
                (y,) = y.inputs
        self.views: dict[Node, Views] = {}
        for node in execution_order(graph, results, stay):
            self.node(node)

    def buffer(self, space: MemorySpace, nbytes: int, node: Node | None = None) -> Buffer:
        now = len(self.program.steps)
        made = Buffer(space, nbytes, node, now, now)
        self.program.buffers.append(made)
        return made

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
        """Whether the result is a view of the first input; then it needs no step."""
        if not node.op.is_view:
            return False
        (view,) = self.views[node.inputs[0]]
        offset = 0
        if view.spec.size:
            # Ask NumPy: apply the op to an array that has the strides but is never read.
            try:
                memory = np.empty(view.extent, np.uint8)
            except MemoryError:  # the program needs more than there is, which binding it will say
                return False
            before = np.ndarray(view.spec.shape, view.spec.dtype, memory, view.lead, view.strides)
            after = node.op.forward(before)
            if after.shape != node.shape:
                what = f"{node.op.name} {node.source}"
                raise CompileError(f"{what} is a view of {after.shape}, not {node.shape}")
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
            self.new_view(
                MemorySpace.OUTPUT if (node, i) in self.results else MemorySpace.ARENA, spec
            )
            for i, spec in enumerate(node.specs)
        )
        self.emit(node, kernel, tuple(views), outputs, choice)
        self.views[node] = outputs

    def chosen(self, node: Node, views: Sequence[View]) -> tuple[Choice | None, Kernel]:
        """Return the kernel for a node of such inputs, and the choice that it comes from."""
        strides = [view.strides for view in views]
        if isinstance(node.op, Loop):
            body = lower_body(node.op, strides, self.backend, self.choose)
            return None, self.backend.loop(node, strides, body)
        choice = self.choose(node, strides)
        return choice, self.backend.kernel(node, strides, choice)

    def result(self, node: Node) -> View:
        """Return where a result of the function is: contiguous, as the caller gets it."""
        (view,) = self.views[node]
        return view if view.contiguous else self.contiguous(node, view, MemorySpace.OUTPUT)

    def value(self, node: Node) -> View:
        """Return where the new value of a parameter is: contiguous, and in no parameter."""
        (view,) = self.views[node]
        lasting = view.contiguous and view.buffer.space is not MemorySpace.PARAMETER
        return view if lasting else self.contiguous(node, view)

    def apart(self, nodes: Sequence[Node]) -> list[View]:
        """Return where outputs are, each copied to a buffer of its own unless it has one."""
        made: list[View] = []
        for node in nodes:
            (view,) = self.views[node]
            whole = view.contiguous and view.spec.nbytes == view.buffer.nbytes
            mine = view.buffer.space is MemorySpace.OUTPUT and whole
            if not mine or any(view.buffer is other.buffer for other in made):
                view = self.contiguous(node, view, MemorySpace.OUTPUT)
            view.buffer.last = len(self.program.steps)
            made.append(view)
        return made

    def contiguous(self, node: Node, view: View, space: MemorySpace = MemorySpace.ARENA) -> View:
        """Append a step that copies `view`, and return the copy."""
        with in_place_of(node):
            copy = Copy()(node)
        copied = self.new_view(space, view.spec)
        self.emit(copy, self.backend.kernel(copy, [view.strides]), (view,), (copied,), None)
        return copied

    def emit(
        self, node: Node, kernel: Kernel, inputs: Views, outputs: Views, choice: Choice | None
    ) -> None:
        now = len(self.program.steps)
        scratch = self.buffer(MemorySpace.ARENA, kernel.scratch)
        for view in (*inputs, *outputs):
            view.buffer.last = now
        self.program.steps.append(Step(node, kernel, inputs, outputs, scratch, choice))


def execution_order(
    graph: Graph, results: int, stay: AbstractSet[Node] = frozenset()
) -> dict[Node, Order]:
    """Return the nodes in the order in which they are to run, inputs before their users, with when.

    results  how many outputs the caller gets; the rest are new values of parameters
    stay     nodes that do not move

    That is the order in which they were made, so a gradient is used up soon after it is there;
    only the tail, elementwise ops and fused kernels on whose results nothing but updates depends,
    moves forward to where its inputs are there, so that no gradient waits for the end of the
    backward pass.  What waits for a collective runs as late as possible.
    """
    nodes = graph.by_order()
    tail = set(graph.outputs[results:]) - set(graph.outputs[:results])
    users = graph.users()
    for node in reversed(nodes):
        if node in stay or not _moves(node) or not all(user in tail for user in users[node]):
            tail.discard(node)
        elif users[node]:
            tail.add(node)
    tail -= set(graph.outputs[:results])
    start = (-1, -1)
    needed = _needed(nodes, users)
    times: dict[Node, Order] = {}
    for node in nodes:
        ready = max((times[x] for x in node.inputs), default=start)
        if isinstance(node.op, AwaitCollective):
            times[node] = max(ready, needed.get(node, (sys.maxsize, node.order[1])))
        else:
            times[node] = ready if not node.inputs or node in tail else max(node.order, ready)
    for node in reversed(nodes):
        if node in tail and times[node] == start:  # it needs nothing but parameters: no hurry
            # A count of steps runs last, when nothing reads the old number, so it stays in place.
            last = (sys.maxsize, node.order[1]) if all(s.size == 1 for s in node.specs) else start
            times[node] = min((times[user] for user in users[node]), default=last)
    return {node: times[node] for node in sorted(times, key=times.__getitem__)}  # a stable sort


def _needed(nodes: list[Node], users: dict[Node, list[Node]]) -> dict[Node, Order]:
    """Return when nodes are first needed by one that does not move; not those that never are."""
    needed: dict[Node, Order] = {}
    for node in reversed(nodes):
        uses = [needed[user] for user in users[node] if user in needed]
        if not (_moves(node) or node.op.is_view or isinstance(node.op, AwaitCollective)):
            uses.append(node.order)
        if uses:
            needed[node] = min(uses)
    return needed


def _moves(node: Node) -> bool:
    return isinstance(node.op, Elementwise | Fused | HorizontalFusion | Item) or node.op.keeps_order


def origin(node: Node) -> tuple[Node, int]:
    """The node, and which of its results, whose memory holds the same elements as `node`."""
    while node.op.keeps_order:
        node = node.inputs[0]
    return (node.inputs[0], node.op.index) if isinstance(node.op, Item) else (node, 0)

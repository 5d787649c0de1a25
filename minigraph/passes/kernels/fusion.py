"""Fusion: which nodes become one generated kernel.

Nodes are visited from the outputs to the inputs.  Each joins the first kernel, in the order of
execution, that reads it; if that kernel cannot take it, a new kernel begins with it.  So kernels
begin in the reverse of an order in which they can run, and no fusion can create a cycle.

If several kernels read a node, the first of them computes and stores it.  Another kernel computes
the node again where that costs less than reading it.  A node does not join a kernel that runs so
much later that the node's inputs would raise the peak of memory.

`notes.stops` says why neighbours were not fused.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

from minigraph.graph import Graph, Item, Node, in_place_of, stand_ins, toposort
from minigraph.jit.domain import Loops, Unfit
from minigraph.jit.expression import is_number
from minigraph.jit.fused import Fused
from minigraph.jit.kernel import check_speed, kernel_of
from minigraph.passes.kernels.group import Group, is_cheap, is_kernel_op, is_placement
from minigraph.passes.notes import Notes

NEAR = 6  # cheap ops that a kernel computes again rather than read their result, at most
PAGE = 4096  # bytes that may be kept for longer


def fuse_elementwise(graph: Graph, notes: Notes) -> Graph:
    """Let elementwise ops that read one another become one kernel."""
    return _Fusion(graph, notes, reductions=False).result()


def fuse_kernels(graph: Graph, notes: Notes) -> Graph:
    """Let elementwise ops and reductions that read one another become one kernel."""
    return _Fusion(graph, notes, reductions=True).result()


class _Fusion:
    """One run of the pass."""

    def __init__(self, graph: Graph, notes: Notes, reductions: bool) -> None:
        self.graph = graph
        self.notes = notes
        self.users = graph.users()
        self.outputs = set(graph.outputs)
        self.fusable = {node for node in graph if is_kernel_op(node, reductions)}
        self.order, self.when = self._times()
        self.last = {x: max((self.when[y] for y in ys), default=0) for x, ys in self.users.items()}
        self.begun = 0
        self.alone: dict[Node, int] = {}  # nodes that stay as they are, with `begun` at that time
        self.groups: list[Group] = []
        self.kernels: dict[Node, list[Group]] = defaultdict(list)  # those that compute a node
        self.fused: dict[Node, tuple[Node]] = {}  # for a node, the result of the kernel made for it
        for node in reversed(self.order):
            if node.inputs:
                self._visit(node)

    def _times(self) -> tuple[list[Node], dict[Node, int]]:
        """Return the order of execution, and how many ops that no kernel takes ran before each.

        The nodes of `_tail` come last in the order, but count as running as soon as their inputs
        are there, which is when the memory of these could be freed.
        """
        tail = self._tail()
        order = self.graph.by_turn(last=tail)
        when: dict[Node, int] = {}
        heavy = 0
        for node in order:
            ready = max((when[x] for x in node.inputs), default=0)
            when[node] = heavy if node.inputs and node not in tail else ready
            if node.inputs and node not in self.fusable and not node.op.is_view:
                heavy += 1
                when[node] = heavy
        return order, when

    def _tail(self) -> set[Node]:
        """Return the nodes that lead to outputs only, by way of nodes that kernels can take.

        These are mainly the updates of parameters.
        """
        tail: set[Node] = set()
        for node in reversed(self.graph.order):
            light = node in self.fusable or is_placement(node) or isinstance(node.op, Item)
            if light and node.inputs and all(user in tail for user in self.users[node]):
                tail.add(node)
        return tail

    # ------------------------------------------------------------ which kernel takes which node

    def _visit(self, node: Node) -> None:
        reading: dict[Group, list[Node]] = {}
        outside = node in self.outputs
        first = 0  # the number of the reader outside of kernels that runs first
        for user in dict.fromkeys(self.users[node]):
            for group in self.kernels[user]:
                reading.setdefault(group, []).append(user)
            if user in self.alone:
                outside = True
                first = max(first, self.alone[user])
                if node in self.fusable and not user.op.is_view and user not in self.fusable:
                    self.notes.stop(node, user, f"{user.op.name} has a kernel of its own")
        if is_placement(node):
            self._place(node, reading, outside, first)
        elif node not in self.fusable:
            self._leave(node, max([first, *(group.begun for group in reading)]))
            maker = node.inputs[0] if isinstance(node.op, Item) else node
            why = f"{maker.op.name} has a kernel of its own"
            if node.op.is_view:
                why = f"a kernel cannot read through {maker.op.name}"
            for users in reading.values():
                self.notes.stop(maker, users[0], why)
        else:
            self._compute(node, reading, outside, first)

    def _place(
        self, node: Node, reading: dict[Group, list[Node]], outside: bool, first: int
    ) -> None:
        """Let each kernel that reads a view compute the view itself."""
        for group, users in reading.items():
            if self._take(group, node, users, stored=False):
                self.kernels[node].append(group)
            else:
                outside = True
                first = max(first, group.begun)
        if outside:
            self._leave(node, first)

    def _compute(
        self, node: Node, reading: dict[Group, list[Node]], outside: bool, first: int
    ) -> None:
        """Put a node into the kernel that reads it first, or begin a kernel with it."""
        home = max(reading, key=lambda group: group.begun, default=None)
        if home is not None and home.begun <= first:
            users = reading[home]
            self.notes.stop(node, users[0], "the result is needed before the kernel can run")
            home = None
        again = self._copies(node, [group for group in reading if group is not home], outside)
        stored = outside or len(again) + (home is not None) < len(reading)
        if home is not None and self._lives_longer(home, node, stored):
            self.notes.stop(
                node, reading[home][0], "the inputs would have to stay in memory for longer"
            )
            home = None
        if home is None or not self._take(home, node, reading[home], stored):
            home = Group(self._next(), self.when[node])
            home.begin(node)
            self.groups.append(home)
        self.kernels[node].append(home)
        for group in again:
            if group is not home and self._take(group, node, reading[group], stored=False):
                self.kernels[node].append(group)
            else:
                home.stored.add(node)

    def _copies(self, node: Node, readers: list[Group], outside: bool) -> list[Group]:
        """Return the kernels for which computing a node again costs less than reading it."""
        if not is_cheap(node):
            return []
        sources = self._sources(node)
        costs = [sum(x.spec.nbytes for x in sources if x not in g.reads) for g in readers]
        there = self.fusable.isdisjoint(sources - self.outputs)
        if there and not outside and max(costs, default=0) <= node.spec.nbytes:
            return readers  # then the node is not stored, and reading its sources costs no more
        large = {x for x in node.inputs if self._is_large(x, node)}
        return [g for g in readers if g.reads.keys() >= large or g.reads.keys() >= sources]

    def _sources(self, node: Node) -> set[Node]:
        """Return the large values from which a few cheap ops compute a cheap node."""
        found: set[Node] = set()
        near = [node]
        for y in near:
            for x in y.inputs:
                if self._is_large(x, node):
                    cheap = x in self.fusable and is_cheap(x) and x not in self.outputs
                    if (cheap or is_placement(x)) and len(near) < NEAR:
                        near.append(x)
                    else:
                        found.add(x)
        return found

    def _is_large(self, x: Node, node: Node) -> bool:
        """Whether the cost of reading `x` matters beside that of reading `node`."""
        return not is_number(x) and x.spec.nbytes > node.spec.nbytes // 8

    def _lives_longer(self, group: Group, node: Node, stored: bool) -> bool:
        """Whether computing a node in this kernel, later, would raise the use of memory."""
        if group.when <= self.when[node]:
            return False  # nothing that matters runs in between
        gained = 0 if stored else node.spec.nbytes
        for x in set(node.inputs):
            if x.inputs and x not in self.outputs and self.last[x] < group.when:
                gained -= x.spec.nbytes
        return gained < -PAGE

    def _take(self, group: Group, node: Node, users: Sequence[Node], stored: bool) -> bool:
        try:
            group.take(node, users, stored)
        except Unfit as why:
            self.notes.stop(node, users[0], str(why))
            return False
        return True

    def _leave(self, node: Node, first: int) -> None:
        """Leave a node as it is; a view costs nothing, so it runs right before `first`."""
        self.alone[node] = first if node.op.is_view else self._next()

    def _next(self) -> int:
        self.begun += 1
        return self.begun

    # ------------------------------------------------------------ the new graph

    def result(self) -> Graph:
        """Return the graph in which each group is one node."""
        for group in reversed(self.groups):  # in the order in which they run
            self._fuse(group)
        return self.graph.substitute(self.fused)

    def _fuse(self, group: Group) -> None:
        """Make the kernels for a group: one, or as few as can compute it."""
        inside = set(group.members)
        parts = [group.members]
        while parts:
            members = parts.pop()
            if sum(node in self.fusable for node in members) < 2:
                continue
            others = inside.difference(members)
            stored = [
                node
                for node in reversed(members)
                if node in group.stored or not others.isdisjoint(self.users[node])
            ]
            try:
                self._make_kernel(group, members, stored)
            except Unfit as why:
                half = len(members) // 2
                later, sooner = members[:half], members[half:]
                parts += later, sooner
                border = set(later)
                pairs = ((x, user) for x in sooner for user in self.users[x] if user in border)
                for x, user in itertools.islice(pairs, 1):
                    self.notes.stop(x, user, str(why))

    def _make_kernel(self, group: Group, members: list[Node], stored: list[Node]) -> None:
        """Make one kernel that computes `stored` of some members; raise Unfit if there is none."""
        inside = set(members)
        around = {x: () for node in members for x in node.inputs if x not in inside}
        # The structure alone decides in which order operands come: equal kernels have one text.
        order = [node for node in toposort(stored, around) if node in inside]
        # An input that is read in two orders, such as x in x + x.T, is two operands.
        reads: dict[tuple[Node, Loops], None] = {}
        for node in order:
            for x in node.inputs:
                if x not in inside and not is_number(x):
                    reads[x, group.loops_of(x, node)] = None
        specs = tuple([x.spec for x, _ in reads])
        given = dict(zip(reads, stand_ins(specs), strict=True))
        made: dict[Node, Node] = {}
        for node in order:
            made[node] = node.replace(
                tuple(
                    made[x] if x in inside else given.get((x, group.loops_of(x, node)), x)
                    for x in node.inputs
                )
            )
        op = Fused(Graph(tuple(given.values()), tuple(made[y] for y in stored)))
        check_speed(kernel_of(op, specs, tuple([spec.strides for spec in specs])))
        with in_place_of(members[0]):
            results = op.results(*(x for x, _ in reads))
        for y, result in zip(stored, results, strict=True):
            self.fused.setdefault(y, (result,))
        self.notes.fired["fused"] += 1

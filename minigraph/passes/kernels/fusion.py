"""Fusion: which nodes become one generated kernel.

Nodes are visited from the outputs to the inputs.  Each joins the first kernel, in the order of
execution, that reads it; if that kernel cannot take it, a new kernel begins with it.  So kernels
begin in the reverse of an order in which they can run, and no fusion can create a cycle.  A
reduction may also join a kernel that reduces the same values, though neither reads the other: what
they read is read once.

If several kernels read a node, the first of them computes and stores it.  Another kernel computes
the node again where that costs less than reading it.  A node does not join a kernel that runs so
much later that the node's inputs would raise the peak of memory.

`notes.stops` says why neighbours were not fused.

Before all that, composed ops are taken apart, so that fusion sees the simpler ops they are made of.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Sequence

from minigraph.graph import Graph, Item, Node, Op, Spec, in_place_of, placeholders, toposort
from minigraph.jit.domain import NotFusible
from minigraph.jit.expression import is_number
from minigraph.jit.fused import Fused
from minigraph.jit.kernel import check_speed, kernel_of
from minigraph.jit.loops import BLOCKS
from minigraph.ops.reduction import Reduction
from minigraph.passes.kernels.borders import CHEAP, copy_for_paddings
from minigraph.passes.kernels.group import FusionGroup, is_cheap, is_kernel_op, is_placement
from minigraph.passes.notes import Notes

Reading = dict[FusionGroup, list[Node]]  # the kernels that read a node, with the nodes that do so
SIBLINGS = 4  # kernels that reduce the same value that another reduction may join, at most
PAGE = 4096  # bytes that may be kept for longer


def decompose(graph: Graph, notes: Notes) -> Graph:
    """Replace composed ops, such as a batch norm, by simpler ones.

    An op is left alone if one generated kernel could not compute all of it, as for a normalisation
    with the channels last: its own kernel reads memory less often than several would.
    """
    parts: dict[Node, Sequence[Node]] = {}

    def rewrite(node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node.op, Item) and node.inputs[0] in parts:
            return parts[node.inputs[0]][node.op.index]
        if not (node.op.composed and _is_one_kernel(node.op, tuple(x.spec for x in node.inputs))):
            return node.replace(inputs)
        notes.fired[node.op.name] += 1
        parts[node] = node.op.expand(*inputs)
        return parts[node][0]  # in place of a bundle too: only its items read that

    return graph.map(rewrite)


def _is_one_kernel(op: Op, inputs: tuple[Spec, ...]) -> bool:
    shapes = [x.shape for x in inputs]
    last = {shape[1] for shape in shapes if len(shape) == 2}  # of vectors that go with images
    if len(shapes[0]) == 5 and last and last.isdisjoint(BLOCKS):
        return True
    try:
        check_speed(kernel_of(op, inputs, tuple([x.strides for x in inputs])))
    except NotFusible:
        return False
    return all(x.size for x in inputs)


def fuse_elementwise(graph: Graph, notes: Notes) -> Graph:
    """Let elementwise ops that read one another become one kernel."""
    return _Fusion(graph, notes, reductions=False).result()


def fuse_kernels(graph: Graph, notes: Notes) -> Graph:
    """Let elementwise ops and reductions that read one another become one kernel."""
    return _Fusion(copy_for_paddings(graph), notes, reductions=True).result()


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
        self.groups: dict[FusionGroup, None] = {}
        # The kernels that compute a node, and those that reduce a value.
        self.kernels: dict[Node, list[FusionGroup]] = defaultdict(list)
        self.reducing: dict[Node, list[FusionGroup]] = defaultdict(list)
        self.fused: dict[Node, tuple[Node]] = {}  # for a node, the result of the kernel made for it
        for node in reversed(self.order):
            if node.inputs:
                self._visit(node)

    def _times(self) -> tuple[list[Node], dict[Node, int]]:
        """Return the order of execution, and how many ops that no kernel takes ran before each.

        An op that reads nothing but single numbers takes no time, and does not count.
        The nodes of `_tail` come last in the order, but count as running as soon as their inputs
        are there, which is when the memory of these could be freed.
        """
        tail = self._tail()
        order = self.graph.by_order(last=tail)
        when: dict[Node, int] = {}
        heavy = 0
        for node in order:
            ready = max((when[x] for x in node.inputs), default=0)
            when[node] = heavy if node.inputs and node not in tail else ready
            light = node in self.fusable or node.op.is_view
            if not light and any(s.size != 1 for x in node.inputs for s in x.specs):
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
        reading: Reading = {}
        outside = node in self.outputs
        first = 0  # the number of the reader outside of kernels that runs first
        for user in dict.fromkeys(self.users[node]):
            for group in self.kernels[user]:
                reading.setdefault(group, []).append(user)
            if user in self.alone:
                outside = True
                first = max(first, self.alone[user])
                if node in self.fusable and not user.op.is_view and user not in self.fusable:
                    self.notes.miss(node, user, f"{user.op.name} has a kernel of its own")
        if is_placement(node):
            self._place(node, reading, outside, first)
        elif node not in self.fusable:
            self._leave(node, max([first, *(group.begun for group in reading)]))
            maker = node.inputs[0] if isinstance(node.op, Item) else node
            why = f"{maker.op.name} has a kernel of its own"
            if node.op.is_view:
                why = f"a kernel cannot read through {maker.op.name}"
            for users in reading.values():
                self.notes.miss(maker, users[0], why)
        else:
            self._compute(node, reading, outside, first)

    def _place(self, node: Node, reading: Reading, outside: bool, first: int) -> None:
        """Let each kernel that reads a view compute the view itself."""
        for group, users in reading.items():
            if self._take(group, node, users, stored=False):
                self.kernels[node].append(group)
            else:
                outside = True
                first = max(first, group.begun)
        if outside:
            self._leave(node, first)

    def _compute(self, node: Node, reading: Reading, outside: bool, first: int) -> None:
        """Put a node into the kernel that reads it first, or begin a kernel with it."""
        home = max(reading, key=lambda group: group.begun, default=None)
        if home is not None and home.begun <= first:
            users = reading[home]
            self.notes.miss(node, users[0], "the result is needed before the kernel can run")
            home = None
        others = [group for group in reading if group is not home]
        beside = all(group.when == self.when[node] for group in others)
        kept = {x for x in node.inputs if self._first(x, [home] if home else [])}
        again = self._copies(node, others, outside, beside, kept)
        stored = outside or len(again) + (home is not None) < len(reading)
        if home is not None and self._lives_longer(home, node, stored):
            self.notes.miss(
                node, reading[home][0], "the inputs would have to stay in memory for longer"
            )
            home = None
        found = self._beside(node, home, reading, first, stored)
        if found is not None:
            home = found
        elif home is None or not self._take(home, node, reading[home], stored):
            home = FusionGroup(self._next(), self.when[node])
            home.begin(node)
            self.groups[home] = None
        self.kernels[node].append(home)
        if isinstance(node.op, Reduction):
            for x in self._reduced(node):
                self.reducing[x].append(home)
        for group in again:
            if group is not home and self._take(group, node, reading[group], stored=False):
                self.kernels[node].append(group)
            else:
                home.stored.add(node)

    def _beside(
        self, node: Node, home: FusionGroup | None, reading: Reading, first: int, stored: bool
    ) -> FusionGroup | None:
        """Return the kernel that has taken a reduction in because it reduces the same values.

        It also takes in what `home` has begun to compute of the reduction's result.
        """
        home = home or FusionGroup(0, 0)
        if not isinstance(node.op, Reduction) or home.reduced is not None:
            return None
        found = (g for x in self._reduced(node) for g in self.reducing[x][-SIBLINGS:])
        for group in dict.fromkeys(found):
            both = home, group
            others = (g.begun for g in reading if g not in both)
            last = max([first, *others, *(self._first(x, both) for x in home.members)])
            if group.begun <= last or group.when != self.when[node]:
                continue
            with contextlib.suppress(NotFusible), group.trial():
                for x in home.members:
                    group.leave(x)  # what it computes again
                    inside = [user for user in self.users[x] if user in group.loops]
                    group.take(x, inside, x in home.stored)
                users = dict.fromkeys(user for g in both for user in reading.get(g, ()))
                group.take(node, list(users), stored)
                for x in home.members:
                    kernels = (group if g is home else g for g in self.kernels[x])
                    self.kernels[x] = [*dict.fromkeys(kernels)]
                self.groups.pop(home, None)
                return group
        return None

    def _first(self, x: Node, inside: Sequence[FusionGroup]) -> int:
        """Return the number of the reader outside of `inside` that runs first; 0: there is none."""
        users = self.users[x]
        groups = [g.begun for user in users for g in self.kernels[user] if g not in inside]
        return max([0, *groups, *(self.alone.get(user, 0) for user in users)])

    def _lives_longer(self, group: FusionGroup, node: Node, stored: bool) -> bool:
        """Whether computing a node in this kernel, later, would raise the use of memory."""
        if group.when <= self.when[node]:
            return False  # nothing that matters runs in between
        gained = 0 if stored else node.spec.nbytes
        for x in set(node.inputs):
            if x.inputs and x not in self.outputs and self.last[x] < group.when:
                gained -= x.spec.nbytes
        return gained < -PAGE

    def _take(self, group: FusionGroup, node: Node, users: Sequence[Node], stored: bool) -> bool:
        try:
            group.take(node, users, stored)
        except NotFusible as why:
            self.notes.miss(node, users[0], str(why))
            return False
        return True

    def _leave(self, node: Node, first: int) -> None:
        self.alone[node] = first if node.op.is_view else self._next()

    def _next(self) -> int:
        self.begun += 1
        return self.begun

    def _copies(
        self, node: Node, readers: list[FusionGroup], outside: bool, beside: bool, kept: set[Node]
    ) -> list[FusionGroup]:
        """Return the kernels for which computing a node again costs less than reading it.

        readers  the kernels that read it, but for the one that computes it anyway
        outside  whether others read it, too
        beside   whether only kernels run between all of them
        kept     those of its inputs that kernels read which run later
        """
        if not is_cheap(node):
            return []
        sources = self._near(node)[1]
        costs = [sum(x.spec.nbytes for x in sources if x not in g.reads) for g in readers]
        there = self.fusable.isdisjoint(sources - self.outputs)
        # Kept a little longer, the sources take no more memory: then not writing counts, too.
        spared = len(readers) + beside
        if there and not outside and sum(costs) <= spared * node.spec.nbytes:
            return readers
        large = {x for x in node.inputs if _is_large(x, node)}
        if not outside and large and large <= kept:
            costs = [sum(x.spec.nbytes for x in large if x not in g.reads) for g in readers]
            if sum(costs) <= len(readers) * node.spec.nbytes:
                return readers
        return [g for g in readers if g.reads.keys() >= large or g.reads.keys() >= sources]

    def _reduced(self, reduction: Node) -> set[Node]:
        """Return the value that a reduction reads, and those it is made of by a few cheap ops."""
        (x,) = reduction.inputs
        if not is_cheap(x):
            return {x}
        near, sources = self._near(x)
        return sources.union(near)

    def _near(self, node: Node) -> tuple[list[Node], set[Node]]:
        """Return a node with the few cheap ops that lead to it, and the large values they read."""
        found: set[Node] = set()
        near = [node]
        for y in near:
            for x in y.inputs:
                if _is_large(x, node):
                    cheap = x in self.fusable and is_cheap(x) and x not in self.outputs
                    if (cheap or is_placement(x)) and len(near) < CHEAP:
                        near.append(x)
                    else:
                        found.add(x)
        return near, found

    def result(self) -> Graph:
        for group in reversed(self.groups):  # in the order in which they run
            self._fuse(group)
        return self.graph.substitute(self.fused)

    def _fuse(self, group: FusionGroup) -> None:
        """Make the kernels for a group: one, or as few as can compute it."""
        inside = set(group.members)
        parts = [group.members]
        while parts:
            members = parts.pop()
            if sum(node in self.fusable for node in members) < 2:
                continue
            others = inside.difference(members)
            read = group.stored.union(x for x in members if not others.isdisjoint(self.users[x]))
            stored = [node for node in reversed(members) if node in read]
            try:
                self._make_kernel(group, members, stored)
            except NotFusible as why:
                half = len(members) // 2
                later, sooner = members[:half], members[half:]
                parts += later, sooner
                border = set(later)
                pairs = ((x, user) for x in sooner for user in self.users[x] if user in border)
                for x, user in itertools.islice(pairs, 1):
                    self.notes.miss(x, user, str(why))

    def _make_kernel(self, group: FusionGroup, members: list[Node], stored: list[Node]) -> None:
        """Make one kernel that computes `stored` of some members; or raise NotFusible."""
        inside = set(members)
        around = {x: () for node in members for x in node.inputs if x not in inside}
        # The structure alone decides in which order operands come: equal kernels have one text.
        order = [node for node in toposort(stored, around) if node in inside]
        loops = {
            (x, node): group.place_of(x, node)
            for node in order
            for x in node.inputs
            if x not in inside and not is_number(x)
        }
        # An input that is read in two orders, such as x in x + x.T, is two operands.
        reads = dict.fromkeys((x, place) for (x, _), place in loops.items())
        specs = tuple([x.spec for x, _ in reads])
        with in_place_of(members[0]):
            given = dict(zip(reads, placeholders(specs), strict=True))
            made: dict[Node, Node] = {}
            for node in order:
                made[node] = node.replace(
                    tuple(
                        given[x, loops[x, node]] if (x, node) in loops else made.get(x, x)
                        for x in node.inputs
                    )
                )
            op = Fused(Graph(tuple(given.values()), tuple(made[y] for y in stored)))
            check_speed(kernel_of(op, specs, tuple([spec.strides for spec in specs])))
            results = op.results(*(x for x, _ in reads))
        for y, result in zip(stored, results, strict=True):
            self.fused.setdefault(y, (result,))
        self.notes.fired["fused"] += 1


def _is_large(x: Node, node: Node) -> bool:
    """Whether the cost of reading `x` matters beside that of reading `node`."""
    return not is_number(x) and x.spec.nbytes > node.spec.nbytes // 8

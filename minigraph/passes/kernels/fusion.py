"""Fusion: the assignment of nodes to generated kernels.

Nodes are visited from the outputs to the inputs.  A node joins the first kernel, in the order of
execution, that reads it; if it cannot join, it starts a new kernel.  So kernels are numbered in the
reverse of an order in which they can run, and fusion cannot create a cycle.  A reduction may also
join a kernel that reduces the same values, although neither reads the other: the kernel then reads
these values once.

If several kernels read a node, the first of them computes and stores it.  Another kernel recomputes
the node if that costs less than reading it.  A node does not join a kernel that runs so much later
that keeping the node's inputs would raise the peak of memory.

`notes.stops` lists neighbours that were not fused, with reasons.

`decompose` runs before fusion and replaces composed ops by the simpler ops that they consist of.
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
from minigraph.jit.loops import LANE_COUNTS
from minigraph.ops.reduction import Reduction
from minigraph.passes.kernels.borders import MAX_CHEAP_OPS, copy_for_paddings
from minigraph.passes.kernels.group import FusionGroup, is_cheap, is_kernel_op, is_placement
from minigraph.passes.notes import Notes

ReadersByGroup = dict[FusionGroup, list[Node]]  # for a node, its readers in each kernel
MAX_SIBLINGS = 4  # kernels that reduce the same value, of which a reduction may join one
PAGE = 4096  # bytes that fusion may keep in memory for longer


def decompose(graph: Graph, notes: Notes) -> Graph:
    """Replace composed ops, such as a batch norm, by simpler ones.

    An op is kept if one generated kernel cannot compute all of it, as for a normalisation with the
    channels last: its handwritten kernel reads memory less often than several kernels would.
    """
    parts: dict[Node, Sequence[Node]] = {}

    def rewrite(node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node.op, Item) and node.inputs[0] in parts:
            return parts[node.inputs[0]][node.op.index]
        if not (node.op.composed and _is_one_kernel(node.op, tuple(x.spec for x in node.inputs))):
            return node.replace(inputs)
        notes.fired[node.op.name] += 1
        parts[node] = node.op.expand(*inputs)
        return parts[node][0]  # for a bundle, any node is valid: only its items read it

    return graph.map(rewrite)


def _is_one_kernel(op: Op, inputs: tuple[Spec, ...]) -> bool:
    shapes = [x.shape for x in inputs]
    lanes = {shape[1] for shape in shapes if len(shape) == 2}  # of vectors of blocked channels
    if len(shapes[0]) == 5 and lanes and lanes.isdisjoint(LANE_COUNTS):
        return True
    try:
        check_speed(kernel_of(op, inputs, tuple([x.strides for x in inputs])))
    except NotFusible:
        return False
    return all(x.size for x in inputs)


def fuse_elementwise(graph: Graph, notes: Notes) -> Graph:
    """Fuse elementwise ops that read one another."""
    return _Fusion(graph, notes, reductions=False).result()


def fuse_kernels(graph: Graph, notes: Notes) -> Graph:
    """Fuse elementwise ops and reductions that read one another."""
    return _Fusion(copy_for_paddings(graph), notes, reductions=True).result()


class _Fusion:
    """One run of the pass."""

    def __init__(self, graph: Graph, notes: Notes, reductions: bool) -> None:
        self.graph = graph
        self.notes = notes
        self.users = graph.users()
        self.outputs = set(graph.outputs)
        self.fusable = {node for node in graph if is_kernel_op(node, reductions)}
        self.order, self.time = self._execution_order()
        self.last_read = {
            x: max((self.time[y] for y in ys), default=0) for x, ys in self.users.items()
        }
        self.numbers = itertools.count(1)  # of kernels and nodes outside of kernels
        self.unfused: dict[Node, int] = {}  # nodes outside of kernels, with their numbers
        self.groups: dict[FusionGroup, None] = {}
        # The kernels that compute a node, and those that reduce a value.
        self.kernels: dict[Node, list[FusionGroup]] = defaultdict(list)
        self.reducing: dict[Node, list[FusionGroup]] = defaultdict(list)
        self.fused: dict[Node, tuple[Node]] = {}  # for a node, the result of the kernel made for it
        for node in reversed(self.order):
            if node.inputs:
                self._visit(node)

    def _execution_order(self) -> tuple[list[Node], dict[Node, int]]:
        """Return the order of execution, and the time of each node.

        The time is the number of ops outside of kernels that run before the node, except for ops
        that read only single numbers.  Nodes of `_tail` are last in the order, but have the time of
        their inputs, when the memory of the inputs could be freed.
        """
        tail = self._tail()
        order = self.graph.by_order(deferred=tail)
        time: dict[Node, int] = {}
        unfusable = 0
        for node in order:
            ready = max((time[x] for x in node.inputs), default=0)
            time[node] = unfusable if node.inputs and node not in tail else ready
            is_light = node in self.fusable or node.op.is_view
            if not is_light and any(s.size != 1 for x in node.inputs for s in x.specs):
                unfusable += 1
                time[node] = unfusable
        return order, time

    def _tail(self) -> set[Node]:
        """Return the nodes whose results reach only outputs, and only through nodes of kernels.

        These are mainly the updates of parameters.
        """
        tail: set[Node] = set()
        for node in reversed(self.graph.order):
            light = node in self.fusable or is_placement(node) or isinstance(node.op, Item)
            if light and node.inputs and all(user in tail for user in self.users[node]):
                tail.add(node)
        return tail

    # ------------------------------------------------------------ assignment of nodes to kernels

    def _visit(self, node: Node) -> None:
        readers: ReadersByGroup = {}
        outside = node in self.outputs
        limit = 0  # number of the first reader outside of kernels; larger numbers run earlier
        for user in dict.fromkeys(self.users[node]):
            for group in self.kernels[user]:
                readers.setdefault(group, []).append(user)
            if user in self.unfused:
                outside = True
                limit = max(limit, self.unfused[user])
                if node in self.fusable and not user.op.is_view and user not in self.fusable:
                    self.notes.miss(node, user, f"{user.op.name} has a separate kernel")
        if is_placement(node):
            self._add_view(node, readers, outside, limit)
        elif node not in self.fusable:
            self._leave_unfused(node, max([limit, *(group.number for group in readers)]))
            producer = node.inputs[0] if isinstance(node.op, Item) else node
            reason = f"{producer.op.name} has a separate kernel"
            if node.op.is_view:
                reason = f"a kernel cannot read through {producer.op.name}"
            for users in readers.values():
                self.notes.miss(producer, users[0], reason)
        else:
            self._add_node(node, readers, outside, limit)

    def _add_view(self, node: Node, readers: ReadersByGroup, outside: bool, limit: int) -> None:
        """Add a view to each kernel that reads it."""
        for group, users in readers.items():
            if self._try_add(group, node, users, stored=False):
                self.kernels[node].append(group)
            else:
                outside = True
                limit = max(limit, group.number)
        if outside:
            self._leave_unfused(node, limit)

    def _add_node(self, node: Node, readers: ReadersByGroup, outside: bool, limit: int) -> None:
        """Add a node to the first kernel that reads it, or start a kernel with it."""
        target = max(readers, key=lambda group: group.number, default=None)
        if target is not None and target.number <= limit:
            users = readers[target]
            self.notes.miss(node, users[0], "the result is needed before the kernel can run")
            target = None
        others = [group for group in readers if group is not target]
        adjacent = all(group.time == self.time[node] for group in others)
        recomputing = self._recomputing(node, others, outside, adjacent, target)
        stored = outside or len(recomputing) + (target is not None) < len(readers)
        if target is not None and self._lives_longer(target, node, stored):
            self.notes.miss(
                node, readers[target][0], "the inputs would have to stay in memory for longer"
            )
            target = None
        sibling = self._join_sibling(node, target, readers, limit, stored)
        if sibling is not None:
            target = sibling
        elif target is None or not self._try_add(target, node, readers[target], stored):
            target = FusionGroup(next(self.numbers), self.time[node])
            target.start(node)
            self.groups[target] = None
        self.kernels[node].append(target)
        if isinstance(node.op, Reduction):
            for x in self._reduced(node):
                self.reducing[x].append(target)
        for group in recomputing:
            if group is not target and self._try_add(group, node, readers[group], stored=False):
                self.kernels[node].append(group)
            else:
                target.stored.add(node)

    def _join_sibling(
        self,
        node: Node,
        target: FusionGroup | None,
        readers: ReadersByGroup,
        limit: int,
        stored: bool,
    ) -> FusionGroup | None:
        """Let a reduction join a kernel that reduces the same values, and return the kernel.

        The members of `target`, a kernel that reads the reduction's result, also join.
        """
        target = target or FusionGroup(0, 0)
        if not isinstance(node.op, Reduction) or target.reduced is not None:
            return None
        candidates = (g for x in self._reduced(node) for g in self.reducing[x][-MAX_SIBLINGS:])
        for group in dict.fromkeys(candidates):
            merged = target, group
            others = (g.number for g in readers if g not in merged)
            member_readers = (self._first_reader(x, merged) for x in target.members)
            first = max([limit, *others, *member_readers])
            if group.number <= first or group.time != self.time[node]:
                continue
            with contextlib.suppress(NotFusible), group.trial():
                for x in target.members:
                    group.remove(x)  # if the group recomputes it
                    inside = [user for user in self.users[x] if user in group.loops]
                    group.add(x, inside, x in target.stored)
                users = dict.fromkeys(user for g in merged for user in readers.get(g, ()))
                group.add(node, list(users), stored)
                for x in target.members:
                    kernels = (group if g is target else g for g in self.kernels[x])
                    self.kernels[x] = [*dict.fromkeys(kernels)]
                self.groups.pop(target, None)
                return group
        return None

    def _first_reader(self, x: Node, inside: Sequence[FusionGroup]) -> int:
        """Return the number of the first reader outside of the kernels `inside`; 0 without one."""
        users = self.users[x]
        groups = [g.number for user in users for g in self.kernels[user] if g not in inside]
        return max([0, *groups, *(self.unfused.get(user, 0) for user in users)])

    def _is_read_later(self, x: Node, target: FusionGroup | None) -> bool:
        """Whether `x` has a reader among the later nodes outside of the kernel `target`."""
        return any(  # the latest readers first: only later nodes are in kernels or unfused
            self.unfused.get(user) or any(group is not target for group in self.kernels[user])
            for user in reversed(self.users[x])
        )

    def _lives_longer(self, group: FusionGroup, node: Node, stored: bool) -> bool:
        """Whether computing a node later, in this kernel, would raise the use of memory."""
        if group.time <= self.time[node]:
            return False
        saved = 0 if stored else node.spec.nbytes
        for x in set(node.inputs):
            if x.inputs and x not in self.outputs and self.last_read[x] < group.time:
                saved -= x.spec.nbytes
        return saved < -PAGE

    def _try_add(self, group: FusionGroup, node: Node, users: Sequence[Node], stored: bool) -> bool:
        try:
            group.add(node, users, stored)
        except NotFusible as reason:
            self.notes.miss(node, users[0], str(reason))
            return False
        return True

    def _leave_unfused(self, node: Node, limit: int) -> None:
        self.unfused[node] = limit if node.op.is_view else next(self.numbers)

    def _recomputing(
        self,
        node: Node,
        readers: list[FusionGroup],
        outside: bool,
        adjacent: bool,
        target: FusionGroup | None,
    ) -> list[FusionGroup]:
        """Return the kernels for which recomputing a node costs less than reading it.

        readers   kernels that read it, except for the kernel that computes it
        outside   whether nodes outside of kernels read it, too
        adjacent  whether no op outside of kernels runs between its readers
        target    the kernel that computes it, if it is not a new one
        """
        if not is_cheap(node):
            return []
        sources = self._cheap_chain(node)[1]
        costs = [sum(x.spec.nbytes for x in sources if x not in g.reads) for g in readers]
        in_memory = self.fusable.isdisjoint(sources - self.outputs)
        # If keeping the sources does not raise the peak of memory, the store that is saved counts.
        saved_accesses = len(readers) + adjacent
        if in_memory and not outside and sum(costs) <= saved_accesses * node.spec.nbytes:
            return readers
        large = {x for x in node.inputs if _is_large(x, node)}
        if not outside and large and all(self._is_read_later(x, target) for x in large):
            costs = [sum(x.spec.nbytes for x in large if x not in g.reads) for g in readers]
            if sum(costs) <= len(readers) * node.spec.nbytes:
                return readers
        return [g for g in readers if g.reads.keys() >= large or g.reads.keys() >= sources]

    def _reduced(self, reduction: Node) -> set[Node]:
        """Return the values that a reduction reads, directly or through a few cheap ops."""
        (x,) = reduction.inputs
        if not is_cheap(x):
            return {x}
        chain, sources = self._cheap_chain(x)
        return sources.union(chain)

    def _cheap_chain(self, node: Node) -> tuple[list[Node], set[Node]]:
        """Return a node with a few cheap ops before it, and the large values that they read."""
        sources: set[Node] = set()
        chain = [node]
        for y in chain:
            for x in y.inputs:
                if _is_large(x, node):
                    cheap = x in self.fusable and is_cheap(x) and x not in self.outputs
                    if (cheap or is_placement(x)) and len(chain) < MAX_CHEAP_OPS:
                        chain.append(x)
                    else:
                        sources.add(x)
        return chain, sources

    def result(self) -> Graph:
        for group in reversed(self.groups):  # in the order of execution
            self._fuse(group)
        return self.graph.substitute(self.fused)

    def _fuse(self, group: FusionGroup) -> None:
        """Make the kernel for a group; halve the group if one kernel cannot compute it."""
        inside = set(group.members)
        parts = [group.members]
        while parts:
            members = parts.pop()
            if sum(node in self.fusable for node in members) < 2:
                continue
            others = inside.difference(members)
            results = group.stored.union(x for x in members if not others.isdisjoint(self.users[x]))
            stored = [node for node in reversed(members) if node in results]
            try:
                self._make_kernel(group, members, stored)
            except NotFusible as reason:
                half = len(members) // 2
                later, sooner = members[:half], members[half:]
                parts += later, sooner
                border = set(later)
                pairs = ((x, user) for x in sooner for user in self.users[x] if user in border)
                for x, user in itertools.islice(pairs, 1):
                    self.notes.miss(x, user, str(reason))

    def _make_kernel(self, group: FusionGroup, members: list[Node], stored: list[Node]) -> None:
        """Make one kernel that computes `stored` from some members; NotFusible if none can."""
        inside = set(members)
        external = {x: () for node in members for x in node.inputs if x not in inside}
        # The order of operands depends on the structure only, so equal kernels have the same text.
        order = [node for node in toposort(stored, external) if node in inside]
        accesses = {
            (x, node): group.access_of(x, node)
            for node in order
            for x in node.inputs
            if x not in inside and not is_number(x)
        }
        # An input that is read along different loops, such as x in x + x.T, is two operands.
        reads = dict.fromkeys((x, access) for (x, _), access in accesses.items())
        specs = tuple([x.spec for x, _ in reads])
        with in_place_of(members[0]):
            operands = dict(zip(reads, placeholders(specs), strict=True))
            new: dict[Node, Node] = {}
            for node in order:
                new[node] = node.replace(
                    tuple(
                        operands[x, accesses[x, node]] if (x, node) in accesses else new.get(x, x)
                        for x in node.inputs
                    )
                )
            op = Fused(Graph(tuple(operands.values()), tuple(new[y] for y in stored)))
            check_speed(kernel_of(op, specs, tuple([spec.strides for spec in specs])))
            results = op.results(*(x for x, _ in reads))
        for y, result in zip(stored, results, strict=True):
            self.fused.setdefault(y, (result,))
        self.notes.fired["fused"] += 1


def _is_large(x: Node, node: Node) -> bool:
    """Whether reading `x` costs a relevant share of reading `node`."""
    return not is_number(x) and x.spec.nbytes > node.spec.nbytes // 8

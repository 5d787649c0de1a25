"""Activations that wait for the backward pass, in bfloat16: half of their memory.

What the forward pass computes in float32 and the backward pass reads is rounded to bfloat16 as long
as it waits.  The forward pass itself goes on in float32.  The kernel that makes such an array, or a
generated one that reads it, stores it rounded as well; generated kernels of the backward pass read
that, and others a copy in float32 that is made right before.  Small arrays stay as they are, as do
those that only generated kernels run between.  So do those of loops, which make and read all steps
at once.

Gradients are computed from activations of fewer bits in ActNN, too (Chen et al. (2021),
https://arxiv.org/abs/2104.14129).  bfloat16 is what processors convert in an instruction, and has
the range of float32.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np

from minigraph.graph import DType, Graph, Item, Loop, Node, as_dtype, in_place_of
from minigraph.jit.domain import NotFusible
from minigraph.jit.fused import Fused
from minigraph.jit.kernel import check_speed, kernel_of
from minigraph.ops.elementwise import Astype, astype
from minigraph.passes.kernels.retyping import graph_of, is_generated, items_of, retyped
from minigraph.passes.notes import Notes

LEAST = 1 << 14  # bytes of an array from which on its memory matters
F32 = np.dtype(np.float32)


def narrow_saved_activations(graph: Graph, notes: Notes, saved_activations: str) -> Graph:
    """Return the graph whose activations wait for the backward pass in this type."""
    return _Saving(graph, notes, as_dtype(saved_activations)).result()


class _Saving:
    """One run of the pass.

    late     the nodes of the backward pass, and what depends on them
    readers  by array, what reads it, by way of views or not, in the order in which they run
    hosts    by array that is saved, the kernel that stores it rounded; None: a cast does
    hosted   by kernel, the arrays that it stores rounded
    """

    def __init__(self, graph: Graph, notes: Notes, dtype: DType) -> None:
        self.graph = graph
        self.dtype = dtype
        self.notes = notes
        self.users = graph.users()
        self.late: set[Node] = set()
        for node in graph:
            if node.source.backward or not self.late.isdisjoint(node.inputs):
                self.late.add(node)
        self.readers: dict[Node, list[Node]] = defaultdict(list)
        order = graph.by_order()
        for node in order:
            if not (node.op.is_view or isinstance(node.op, Item)):
                for x in dict.fromkeys(map(_array, node.inputs)):
                    self.readers[x].append(node)
        self.hosts = {x: self._host(x) for x in self._waiting(order)}
        self.hosted: dict[Node, list[Node]] = defaultdict(list)
        for x, host in self.hosts.items():
            if host is not None:
                self.hosted[host].append(x)
        self.new: dict[Node, Node] = {}
        self.results: dict[Node, list[Node]] = {}  # of kernels that were made anew
        self.small: dict[Node, Node] = {}  # by array, or view of one, the same in the small type
        self.wide: dict[Node, Node] = {}  # and what is cast back

    def result(self) -> Graph:
        if not self.hosts:
            return self.graph
        # A kernel that is made anew comes before all that will read its results.
        reads = {node: (*node.inputs, *self._hosts_of(node)) for node in self.late}
        return self.graph.map(self._rewrite, reads)

    def _hosts_of(self, node: Node) -> list[Node]:
        hosts = (self.hosts.get(_array(x)) for x in node.inputs)
        return [host for host in hosts if host is not None]

    # ------------------------------------------------------------ which arrays are saved

    def _waiting(self, order: list[Node]) -> list[Node]:
        """Return the arrays that wait for the backward pass while other ops than generated run."""
        place = {node: i for i, node in enumerate(order)}
        others = [0, *itertools.accumulate(int(_is_step(x) and not is_generated(x)) for x in order)]
        kept = set(map(_array, self.graph.outputs))
        found = []
        for x, readers in self.readers.items():
            fits = _is_step(_maker(x)) and x.dtype == F32 and x.spec.nbytes >= LEAST
            if not fits or x in self.late or x in kept or isinstance(x.op, Astype):
                continue
            early = max([place[x], *(place[y] for y in readers if y not in self.late)])
            later = [y for y in readers if y in self.late]
            late = min((place[y] for y in later), default=0)
            loops = any(isinstance(y.op, Loop) for y in (_maker(x), *later))
            if early < late and others[early + 1] < others[late] and not loops:
                found.append(x)
        return found

    def _host(self, x: Node) -> Node | None:
        """Return the generated kernel that can store x rounded: its own, or one that reads it."""
        if is_generated(_maker(x)):
            return _maker(x)
        early = (y for y in self.readers[x] if y not in self.late and x in set(y.inputs))
        return next((y for y in early if is_generated(y) and _can_store(y, x, self.dtype)), None)

    # ------------------------------------------------------------ the new graph

    def _rewrite(self, node: Node, reads: tuple[Node, ...]) -> Node:
        inputs = reads[: len(node.inputs)]
        if isinstance(node.op, Item) and node.inputs[0] in self.results:
            new = self.results[node.inputs[0]][node.op.index]
        elif node in self.hosted:
            new = self._storing(node, inputs)
        elif node in self.late and not node.op.is_view:
            new = self._reading(node, inputs)
        else:
            new = node.replace(inputs)
        self.new[node] = new
        return new

    def _storing(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        """Return a kernel of the forward pass, or its first result, that stores more."""
        inner, items = graph_of(node), items_of(node, self.users)
        named = zip((*node.inputs, *items), (*inner.inputs, *inner.outputs), strict=True)
        values = {x: y for x, y in named if x is not None}
        stays = [x is None or self._stays(x) for x in items]
        whole = [(y, y.dtype) for y in itertools.compress(inner.outputs, stays)]
        rounded = [(values[x], self.dtype) for x in self.hosted[node]]
        made = retyped(inner, inputs, [*whole, *rounded])
        self.small.update(zip(self.hosted[node], made[len(whole) :], strict=True))
        self.notes.fired["stored by a kernel"] += len(rounded)
        rest = iter(made)
        pairs = zip(items, stays, strict=True)
        self.results[node] = [
            next(rest) if x is None or stay else self.small[x] for x, stay in pairs
        ]
        return self.results[node][0]

    def _stays(self, x: Node) -> bool:
        """Whether a result of a kernel is stored in float32, too."""
        return x not in self.hosts or not self.late.issuperset(self.readers[x])

    def _reading(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        """Return a node of the backward pass, which may read what was saved."""
        version = self._small if is_generated(node) else self._wide
        saved = [_array(x) in self.hosts for x in node.inputs]
        pairs = zip(node.inputs, inputs, saved, strict=True)
        xs = [version(x) if small else new for x, new, small in pairs]
        if not (is_generated(node) and any(saved)):
            return node.replace(tuple(xs))
        inner = graph_of(node)
        self.results[node] = retyped(inner, xs, [(y, y.dtype) for y in inner.outputs])
        return self.results[node][0]

    def _small(self, x: Node) -> Node:
        """Return an array that is saved, or a view of one, in the type that waits."""
        if x not in self.small:
            with in_place_of(x):
                if x.op.is_view:
                    self.small[x] = x.op(self._small(x.inputs[0]))
                else:
                    self.small[x] = astype(self.new[x], self.dtype)
                    self.notes.fired["cast"] += 1
        return self.small[x]

    def _wide(self, x: Node) -> Node:
        """Return the same in float32, as ops read it that are not generated."""
        if x not in self.wide:
            if x.op.is_view:
                with in_place_of(x):
                    self.wide[x] = x.op(self._wide(x.inputs[0]))
            else:
                readers = (y for y in self.readers[x] if y in self.late and not is_generated(y))
                with in_place_of(next(readers)):
                    self.wide[x] = astype(self._small(x), x.dtype)
                self.notes.fired["cast back"] += 1
        return self.wide[x]


def _array(x: Node) -> Node:
    """Return the array that x is, or is a view of."""
    while x.op.is_view:
        x = x.inputs[0]
    return x


def _maker(x: Node) -> Node:
    return x.inputs[0] if isinstance(x.op, Item) else x


def _is_step(x: Node) -> bool:
    """Whether something runs for a node."""
    return bool(x.inputs) and not (x.op.is_view or isinstance(x.op, Item))


def _can_store(kernel: Node, x: Node, dtype: DType) -> bool:
    """Whether a fast kernel can do what this one does, and store its input x in `dtype`, too."""
    inner = graph_of(kernel)
    given = dict(zip(kernel.inputs, inner.inputs, strict=True))[x]
    op = Fused(Graph(inner.inputs, (*inner.outputs, astype(given, dtype))))
    specs = tuple([y.spec for y in kernel.inputs])
    try:
        check_speed(kernel_of(op, specs, tuple([spec.strides for spec in specs])))
    except NotFusible:
        return False
    return True

"""Mixed precision between kernels: what one writes for others is in bfloat16.

Inside a kernel all arithmetic stays in float32.  An array that kernels write and read is in
bfloat16 if each array of its size that it is computed from elementwise is, as the results of
convolutions and products are; smaller ones, such as statistics and weights of a normalisation, do
not count.  So are the results of pooling such arrays.  `FLOAT32` has the functions after which it
is float32 again.  What a kernel stores in bfloat16 for a product it does not store in float32 for
sums too: the gradient of a bias is the sum of what the product reads.  Inputs, results and
parameters of the function, sums, and what a kernel reads that is not generated stay as they are.

`torch.autocast` has such arrays in bfloat16, too, and torch.compile rounds them at such places:
https://docs.pytorch.org/docs/stable/amp.html.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from minigraph.graph import BFLOAT16, Constant, DType, Graph, Item, Node, in_place_of, placeholders
from minigraph.jit.fused import Fused, meaning
from minigraph.ops.arithmetic import Reciprocal, Rsqrt
from minigraph.ops.elementwise import Astype, Elementwise, astype
from minigraph.ops.exponential import Exp, Expm1, Log, Log1p, Log2, Log10, Pow
from minigraph.ops.layout import LaidOut
from minigraph.ops.pooling import AvgPool2d, AvgPool2dBackward, MaxPool2d, MaxPool2dBackward
from minigraph.ops.reduction import Reduction, Sum
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.rule import is_lossless

FLOAT32 = (Exp, Expm1, Log, Log1p, Log2, Log10, Pow, Reciprocal, Rsqrt)
POOLS = (AvgPool2d, AvgPool2dBackward, MaxPool2d, MaxPool2dBackward)
F32 = np.dtype(np.float32)


def narrow_storage(graph: Graph, notes: Notes, amp: str) -> Graph:
    """Return the graph whose kernels hand each other arrays in bfloat16, where `amp` names it.

    Only bfloat16 has the range of float32: gradients would vanish in float16.
    """
    return graph if amp != "bfloat16" else _Storage(graph, notes).result()


class _Storage:
    """One run of the pass."""

    def __init__(self, graph: Graph, notes: Notes) -> None:
        self.graph = graph
        self.notes = notes
        self.outputs = set(graph.outputs)
        self.users = graph.users()
        self.stored: set[Node] = set()  # those that are in bfloat16
        self.results: dict[Node, list[Node]] = {}  # of kernels that were made anew
        for node in graph:
            self.stored.update(self._stored(node))

    def result(self) -> Graph:
        return self.graph.map(self._rewrite) if self.stored else self.graph

    def _stored(self, node: Node) -> list[Node]:
        """Return the results of a node that are to be in bfloat16."""
        if not node.inputs or isinstance(node.op, Item):
            return []
        items = _items_of(node, self.users)
        if node.op.is_view:
            return [node] if node.inputs[0] in self.stored else []
        if _pools(node):
            fits = all(x in self.stored for x in node.inputs if x.dtype == F32)
            wide = [x for x in items if x is not None and x.dtype == F32]
            return [x for x in wide if fits and self._readable(x)]
        if not _is_generated(node):
            return []
        inner = meaning(node.op, [x.spec for x in node.inputs])
        there = {y for x, y in zip(node.inputs, inner.inputs, strict=True) if x in self.stored}
        casts = [y for y in inner.outputs if isinstance(y.op, Astype) and y.dtype == BFLOAT16]
        rounded = {y.inputs[0] for y in casts if not isinstance(y.inputs[0].op, FLOAT32)}
        return [
            x
            for x, y in zip(items, inner.outputs, strict=True)
            if x is not None
            and y.dtype == F32
            and (self._is_small(y, there) or (y in rounded and self._is_summed(x)))
            and self._readable(x)
        ]

    def _readable(self, x: Node) -> bool:
        """Whether all that read an array can read it in bfloat16."""
        if x in self.outputs:
            return False
        return all(
            self._readable(user) if user.op.is_view else _pools(user) or _is_generated(user)
            for user in self.users[x]
        )

    def _is_summed(self, x: Node) -> bool:
        """Whether all that read an array add it up as it is."""
        users = self.users[x]
        return all(self._is_summed(y) if y.op.is_view else _adds_up(y, x) for y in users)

    def _is_small(self, y: Node, there: set[Node]) -> bool:
        """Whether a result is made elementwise of arrays of its size in bfloat16.

        there  the inputs that are in bfloat16
        """
        found, near, seen = False, [y], {y}
        for x in near:
            if x.size < y.size or x.dtype == np.bool_ or isinstance(x.op, Constant):
                continue
            if x.dtype == BFLOAT16 or x in there:
                found = True
            elif not x.inputs or isinstance(x.op, (*FLOAT32, Reduction)):
                return False
            else:
                near += [z for z in dict.fromkeys(x.inputs) if z not in seen]
                seen.update(x.inputs)
        return found

    def _rewrite(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node.op, Item) and node.inputs[0] in self.results:
            return self.results[node.inputs[0]][node.op.index]
        items = _items_of(node, self.users) if node.inputs else []
        if not any(x in self.stored for x in (*node.inputs, *items) if x is not None):
            return node.replace(inputs)
        with in_place_of(node):
            if _is_generated(node):
                inner = meaning(node.op, [x.spec for x in node.inputs])
                small = [x in self.stored for x in items]
                self.notes.fired["values in 16 bits"] += sum(small)
                dtypes = [
                    BFLOAT16 if s else y.dtype for y, s in zip(inner.outputs, small, strict=True)
                ]
                wanted = [*zip(inner.outputs, dtypes, strict=True)]
                self.results[node] = _retyped(inner, inputs, wanted)
            else:  # a view or a pooling whose operands have become small
                self.results[node] = [
                    y if x is None or x in self.stored else astype(y, x.dtype)
                    for y, x in zip(node.op.results(*inputs), items, strict=True)
                ]
        return self.results[node][0]


def _pools(node: Node) -> bool:
    op = node.op.plain if isinstance(node.op, LaidOut) else node.op
    return isinstance(op, POOLS)


def _is_generated(node: Node) -> bool:
    """Whether the kernel of a node is generated, so that it can read and write other types."""
    if isinstance(node.op, Reduction):
        return bool(node.op.combine)
    return isinstance(node.op, Fused | Elementwise)


def _adds_up(node: Node, x: Node) -> bool:
    inner = meaning(node.op, [y.spec for y in node.inputs])
    users, reads = inner.users(), zip(node.inputs, inner.inputs, strict=True)
    return all(type(user.op) is Sum for y, v in reads if y is x for user in users[v])


def _items_of(node: Node, users: Mapping[Node, Sequence[Node]]) -> list[Node | None]:
    """Return the nodes that stand for the results of a node; None for one that is not read."""
    if not node.is_bundle:
        return [node]
    items = {x.op.index: x for x in users[node] if isinstance(x.op, Item)}
    return [items.get(i) for i in range(len(node.specs))]


def _retyped(
    inner: Graph, inputs: Sequence[Node], wanted: Sequence[tuple[Node, DType]]
) -> list[Node]:
    """Return the results of one kernel that computes what the graph `inner` does.

    inputs  what it reads; where a type is another one than in `inner`, the kernel casts
    wanted  what it stores: nodes of `inner`, inputs too, each with a type
    """
    given = placeholders([x.spec for x in inputs])
    there = {old: new.astype(old.dtype) for old, new in zip(inner.inputs, given, strict=True)}
    values = Graph(inner.inputs, tuple(y for y, _ in wanted))
    made = values.map(lambda x, xs: there[x] if x in there else x.replace(xs)).outputs
    casts = {(y.inputs[0], y.dtype): y for y in made if isinstance(y.op, Astype)}
    # What is widened and then wanted as it was needs no kernel.
    lying = dict(zip(given, inputs, strict=True))
    wide = {y: x for (x, _), y in casts.items() if is_lossless(x.dtype, y.dtype)}
    same = {y: lying[x] for y, x in wide.items() if x in lying}
    dtypes = [dtype for _, dtype in wanted]
    if dtypes == [same[y].dtype if y in same else None for y in made]:
        return [same[y] for y in made]
    stored = [
        y if y.dtype == dtype else casts.setdefault((y, dtype), astype(y, dtype))
        for y, (_, dtype) in zip(made, wanted, strict=True)
    ]
    outputs = tuple(dict.fromkeys(stored))
    results = Fused(Graph(given, outputs)).results(*inputs)
    by_value = dict(zip(outputs, results, strict=True))
    return [by_value[y] for y in stored]

"""Mixed precision between kernels: intermediate arrays in bfloat16.

Arithmetic inside of a kernel is float32.  An array between generated kernels is stored in bfloat16
if it is computed elementwise and all operands of its size are in bfloat16, as results of
convolutions and products are.  Smaller operands, such as statistics and weights of a normalisation,
do not count.  Poolings of arrays in bfloat16 are stored in bfloat16, too.  The result of an op in
`FLOAT32_OPS` is stored in float32.  An array that is stored in bfloat16 for a product is not also
stored in float32 for sums: the gradient of a bias is the sum of the product's operand.  Inputs,
results and parameters of the function, sums, and operands of other kernels keep their type.

`torch.autocast` and torch.compile round in the same places:
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

FLOAT32_OPS = (Exp, Expm1, Log, Log1p, Log2, Log10, Pow, Reciprocal, Rsqrt)
POOLINGS = (AvgPool2d, AvgPool2dBackward, MaxPool2d, MaxPool2dBackward)
F32 = np.dtype(np.float32)


def narrow_storage(graph: Graph, notes: Notes, amp: str) -> Graph:
    """Store arrays between kernels in bfloat16 if `amp` is "bfloat16".

    Gradients would underflow in float16; bfloat16 has the range of float32.
    """
    return graph if amp != "bfloat16" else _Storage(graph, notes).result()


class _Storage:
    """One run of the pass."""

    def __init__(self, graph: Graph, notes: Notes) -> None:
        self.graph = graph
        self.notes = notes
        self.outputs = set(graph.outputs)
        self.users = graph.users()
        self.stored: set[Node] = set()  # nodes whose arrays are in bfloat16
        self.results: dict[Node, list[Node]] = {}  # for rewritten nodes
        for node in graph:
            self.stored.update(self._stored(node))

    def result(self) -> Graph:
        return self.graph.map(self._rewrite) if self.stored else self.graph

    def _stored(self, node: Node) -> list[Node]:
        """Return the results of a node that are stored in bfloat16."""
        if not node.inputs or isinstance(node.op, Item):
            return []
        items = _items_of(node, self.users)
        if node.op.is_view:
            return [node] if node.inputs[0] in self.stored else []
        if _is_pooling(node):
            fits = all(x in self.stored for x in node.inputs if x.dtype == F32)
            float32_results = [x for x in items if x is not None and x.dtype == F32]
            return [x for x in float32_results if fits and self._readable(x)]
        if not _is_generated(node):
            return []
        inner = meaning(node.op, [x.spec for x in node.inputs])
        pairs = zip(node.inputs, inner.inputs, strict=True)
        narrow_inputs = {y for x, y in pairs if x in self.stored}
        casts = [y for y in inner.outputs if isinstance(y.op, Astype) and y.dtype == BFLOAT16]
        rounded = {y.inputs[0] for y in casts if not isinstance(y.inputs[0].op, FLOAT32_OPS)}
        return [
            x
            for x, y in zip(items, inner.outputs, strict=True)
            if x is not None
            and y.dtype == F32
            and (self._is_narrow(y, narrow_inputs) or (y in rounded and self._is_summed(x)))
            and self._readable(x)
        ]

    def _readable(self, x: Node) -> bool:
        """Whether all readers of an array can read it in bfloat16."""
        if x in self.outputs:
            return False
        return all(
            self._readable(user) if user.op.is_view else _is_pooling(user) or _is_generated(user)
            for user in self.users[x]
        )

    def _is_summed(self, x: Node) -> bool:
        """Whether all readers of an array sum its elements directly."""
        users = self.users[x]
        return all(self._is_summed(y) if y.op.is_view else _sums(y, x) for y in users)

    def _is_narrow(self, y: Node, narrow: set[Node]) -> bool:
        """Whether a result is computed elementwise from arrays of its size in bfloat16.

        narrow  the inputs that are stored in bfloat16
        """
        reads_bfloat16, queue, visited = False, [y], {y}
        for x in queue:
            if x.size < y.size or x.dtype == np.bool_ or isinstance(x.op, Constant):
                continue
            if x.dtype == BFLOAT16 or x in narrow:
                reads_bfloat16 = True
            elif not x.inputs or isinstance(x.op, (*FLOAT32_OPS, Reduction)):
                return False
            else:
                queue += [z for z in dict.fromkeys(x.inputs) if z not in visited]
                visited.update(x.inputs)
        return reads_bfloat16

    def _rewrite(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node.op, Item) and node.inputs[0] in self.results:
            return self.results[node.inputs[0]][node.op.index]
        items = _items_of(node, self.users) if node.inputs else []
        if not any(x in self.stored for x in (*node.inputs, *items) if x is not None):
            return node.replace(inputs)
        with in_place_of(node):
            if _is_generated(node):
                inner = meaning(node.op, [x.spec for x in node.inputs])
                pairs = zip(inner.outputs, items, strict=True)
                results_dtypes = [(y, BFLOAT16 if x in self.stored else y.dtype) for y, x in pairs]
                self.notes.fired["values in 16 bits"] += sum(x in self.stored for x in items)
                self.results[node] = _with_dtypes(inner, inputs, results_dtypes)
            else:  # a view or a pooling whose operands are now in bfloat16
                self.results[node] = [
                    y if x is None or x in self.stored else astype(y, x.dtype)
                    for y, x in zip(node.op.results(*inputs), items, strict=True)
                ]
        return self.results[node][0]


def _is_pooling(node: Node) -> bool:
    op = node.op.plain if isinstance(node.op, LaidOut) else node.op
    return isinstance(op, POOLINGS)


def _is_generated(node: Node) -> bool:
    """Whether the kernel of a node is generated, so that it may read and write other dtypes."""
    if isinstance(node.op, Reduction):
        return bool(node.op.combine)
    return isinstance(node.op, Fused | Elementwise)


def _sums(node: Node, x: Node) -> bool:
    inner = meaning(node.op, [y.spec for y in node.inputs])
    users, reads = inner.users(), zip(node.inputs, inner.inputs, strict=True)
    return all(type(user.op) is Sum for y, v in reads if y is x for user in users[v])


def _items_of(node: Node, users: Mapping[Node, Sequence[Node]]) -> list[Node | None]:
    """Return the nodes of the results of a node; None for an item that does not exist."""
    if not node.is_bundle:
        return [node]
    items = {x.op.index: x for x in users[node] if isinstance(x.op, Item)}
    return [items.get(i) for i in range(len(node.specs))]


def _with_dtypes(
    inner: Graph, inputs: Sequence[Node], results_dtypes: Sequence[tuple[Node, DType]]
) -> list[Node]:
    """Return the results of one kernel for the graph `inner`, with other dtypes.

    inputs          operands of the kernel, which casts them to their dtypes in `inner`
    results_dtypes  nodes of `inner`, possibly inputs, each with the dtype of its stored result
    """
    operands = placeholders([x.spec for x in inputs])
    widened = {old: x.astype(old.dtype) for old, x in zip(inner.inputs, operands, strict=True)}
    values = Graph(inner.inputs, tuple(y for y, _ in results_dtypes))
    ys = values.replace_nodes(widened).outputs
    casts = {(y.inputs[0], y.dtype): y for y in ys if isinstance(y.op, Astype)}
    # A result that is an operand, widened and narrowed again, needs no kernel.
    input_of = dict(zip(operands, inputs, strict=True))
    widened_operands = {y: x for (x, _), y in casts.items() if is_lossless(x.dtype, y.dtype)}
    same = {y: input_of[x] for y, x in widened_operands.items() if x in input_of}
    dtypes = [dtype for _, dtype in results_dtypes]
    if dtypes == [same[y].dtype if y in same else None for y in ys]:
        return [same[y] for y in ys]
    stored = [
        y if y.dtype == dtype else casts.setdefault((y, dtype), astype(y, dtype))
        for y, (_, dtype) in zip(ys, results_dtypes, strict=True)
    ]
    outputs = tuple(dict.fromkeys(stored))
    results = Fused(Graph(operands, outputs)).results(*inputs)
    by_value = dict(zip(outputs, results, strict=True))
    return [by_value[y] for y in stored]

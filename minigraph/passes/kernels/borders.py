"""Paddings and concatenations inside of generated kernels."""

from __future__ import annotations

import math

from minigraph.graph import Graph, Node, in_place_of
from minigraph.jit.domain import offsets
from minigraph.jit.expression import is_number
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.joining import Concat
from minigraph.ops.slicing import Pad

MAX_JOINED = 4  # arrays of a concatenation: the kernel reads all of them for each element
MIN_LONG_ROW = 64  # elements between two borders
MAX_CHEAP_OPS = 10  # cheap ops that a kernel recomputes instead of reading their result


def has_borders(node: Node) -> bool:
    """Whether a kernel can compute the node: a padding or a short concatenation with long rows."""
    starts = offsets(node) if isinstance(node.op, Pad | Concat) else None
    if starts is None or len(set(node.inputs)) < len(node.inputs) or len(node.inputs) > MAX_JOINED:
        return False
    border_axes = [
        a
        for x, start in zip(node.inputs, starts, strict=True)
        for a, n in enumerate(x.shape)
        if start[a] or n < node.shape[a]
    ]
    row_length = math.prod(node.shape[max(border_axes) :]) if border_axes else node.size
    return row_length >= MIN_LONG_ROW * len(node.inputs)


def copy_for_paddings(graph: Graph) -> Graph:
    """Give each padding separate copies of the cheap ops that it shares with other readers.

    A kernel reads a value at one offset only.  The gradient of x[1:] - x[:-1] pads the gradient of
    the difference on either side: with two copies of the difference, one kernel computes both.
    """
    users, new = graph.users(), dict[Node, Node]()

    def rewrite(node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node.op, Pad) and has_borders(node):
            inputs = (_copy(node, users, new),)
        new[node] = node.replace(inputs)
        return new[node]

    return graph.map(rewrite) if any(map(has_borders, graph)) else graph


def _copy(padding: Node, users: dict[Node, list[Node]], new: dict[Node, Node]) -> Node:
    """Return the new input of a padding: a copy if its cheap ops have other readers."""
    (value,) = padding.inputs
    cheap_ops, views, sources = dict[Node, None](), dict[Node, None](), dict[Node, None]()
    stack = [value]
    while stack:
        x = stack.pop()
        if isinstance(x.op, Elementwise) and not x.op.costly:
            cheap_ops[x] = None
            stack += [y for y in x.inputs if y not in cheap_ops and not is_number(y)]
        else:
            while x.op.is_view:
                views[x] = None
                x = x.inputs[0]
            sources[x] = None
    readers = {user for x in cheap_ops for user in users[x]}.difference(cheap_ops)
    saved = len(readers) * value.spec.nbytes
    if (
        len(readers) == 1
        or len(cheap_ops) > MAX_CHEAP_OPS
        or sum(x.spec.nbytes for x in sources) > saved
    ):
        return new[value]
    copies: dict[Node, Node] = {}
    for x in new:  # inputs first
        if x in cheap_ops or x in views:
            with in_place_of(x):
                copies[x] = x.op(*(copies.get(y, new[y]) for y in x.inputs))
    return copies[value]

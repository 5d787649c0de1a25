"""Paddings and concatenations in kernels: which of them, and what they are made of."""

from __future__ import annotations

import math

from minigraph.graph import Graph, Node, in_place_of
from minigraph.jit.domain import offsets
from minigraph.jit.expression import is_number
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.joining import Concat
from minigraph.ops.slicing import Pad

JOINED = 4  # arrays that a kernel joins at most: each is read, as zeros, beside the others too
LONG = 64  # elements from one border to the next from which on a kernel may have borders
CHEAP = 10  # cheap ops that a kernel computes again rather than read their result, at most


def has_borders(node: Node) -> bool:
    """Whether the node is padded, or joined of a few arrays, with long rows between the borders."""
    starts = offsets(node) if isinstance(node.op, Pad | Concat) else None
    if starts is None or len(set(node.inputs)) < len(node.inputs) or len(node.inputs) > JOINED:
        return False
    bounded = [
        a
        for x, at in zip(node.inputs, starts, strict=True)
        for a, n in enumerate(x.shape)
        if at[a] or n < node.shape[a]
    ]
    row = math.prod(node.shape[max(bounded) :]) if bounded else node.size
    return row >= LONG * len(node.inputs)


def copy_for_paddings(graph: Graph) -> Graph:
    """Give each padding copies of its own of the cheap ops that it and others read.

    A kernel reads a value at one place.  The gradient of x[1:] - x[:-1] is that of the difference,
    padded on either side: with two copies of it one kernel computes it all from x.
    """
    users, new = graph.users(), dict[Node, Node]()

    def rewrite(node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node.op, Pad) and has_borders(node):
            inputs = (_copy(node, users, new),)
        new[node] = node.replace(inputs)
        return new[node]

    return graph.map(rewrite) if any(map(has_borders, graph)) else graph


def _copy(padding: Node, users: dict[Node, list[Node]], new: dict[Node, Node]) -> Node:
    """Return a copy of what a padding is made of, or that itself where it has no other readers."""
    (value,) = padding.inputs
    chain, views, sources = dict[Node, None](), dict[Node, None](), dict[Node, None]()
    stack = [value]
    while stack:
        x = stack.pop()
        if isinstance(x.op, Elementwise) and not x.op.costly:
            chain[x] = None
            stack += [y for y in x.inputs if y not in chain and not is_number(y)]
        else:
            while x.op.is_view:
                views[x] = None
                x = x.inputs[0]
            sources[x] = None
    readers = {user for x in chain for user in users[x]}.difference(chain)
    spared = len(readers) * value.spec.nbytes
    if len(readers) == 1 or len(chain) > CHEAP or sum(x.spec.nbytes for x in sources) > spared:
        return new[value]
    copies: dict[Node, Node] = {}
    for x in new:  # inputs come first
        if x in chain or x in views:
            with in_place_of(x):
                copies[x] = x.op(*(copies.get(y, new[y]) for y in x.inputs))
    return copies[value]

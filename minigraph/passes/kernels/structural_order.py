"""An order of nodes that does not depend on the order in which the user wrote them."""

from __future__ import annotations

import hashlib
from collections import Counter

from minigraph.graph import Constant, Graph, Node, Op


class StructuralOrder:
    """Sort keys for nodes of a graph, and for nodes made of them, by what they compute.

    Two nodes with one key compute the same.  A key depends on the ops, on the names of inputs and
    parameters and on the values of constants; not on when a node was made, and not on the order of
    the operands of a commutative op.  Parameters of one name are numbered as they were made.

    Constants come first, then inputs and parameters, then other ops by name.  So expressions of one
    form, such as the updates of all parameters, get one order, and their kernels one text.
    """

    def __init__(self, graph: Graph) -> None:
        self._keys: dict[Node, bytes] = {}
        self._texts: dict[Op, bytes] = {}  # kept because printing an op is slow
        names: Counter[str] = Counter()
        for parameter in sorted(graph.parameters, key=lambda p: p.turn):
            before = names[parameter.name]
            names[parameter.name] += 1
            self._keys[parameter] = _digest(f"{parameter.op} {before}".encode())

    def key(self, node: Node) -> tuple[int, str, bytes]:
        """Return what to sort the node by."""
        kind = 0 if isinstance(node.op, Constant) else 1 if not node.inputs else 2
        return kind, node.op.name if kind == 2 else "", self.digest(node)

    def digest(self, node: Node) -> bytes:
        """Return a hash of what the node computes; it is computed once for each node."""
        keys, stack = self._keys, [node]
        while stack:
            top = stack[-1]
            if missing := [x for x in top.inputs if x not in keys]:
                stack += missing
                continue
            stack.pop()
            if top not in keys:
                inputs = [keys[x] for x in top.inputs]
                if top.op.commutative:
                    inputs.sort()
                keys[top] = _digest(self._text(top), *inputs)
        return keys[node]

    def _text(self, node: Node) -> bytes:
        """Return what tells a node from others with the same inputs."""
        op = node.op
        if isinstance(op, Constant):
            return str(node.spec).encode() + op.value.tobytes()
        if op not in self._texts:
            self._texts[op] = str(op).encode()
        return self._texts[op]


def _digest(text: bytes, *inputs: bytes) -> bytes:
    return hashlib.blake2b(b"".join((*inputs, text)), digest_size=16).digest()

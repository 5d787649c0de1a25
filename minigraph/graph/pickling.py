"""Pickling and copying expressions, however deep they are.

`pickle` and `copy.deepcopy` follow an object to what it is made of, so they would recurse once for
each op.  Before the first expression they get all that it depends on, one after the other; then
each finds its inputs made.
"""

from __future__ import annotations

import copyreg
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from minigraph.graph.graph import toposort
from minigraph.graph.node import Node, Op


@dataclass(eq=False)
class _Dependencies:
    """The nodes that an expression depends on, in the order in which they were made.

    It exists while `pickle` or `copy` is at work, which then remembers these nodes.
    """

    nodes: dict[Node, None]

    def __reduce__(self) -> tuple[Any, ...]:
        *inputs, _ = self.nodes
        return tuple, (inputs,)


_of_thread = threading.local()


def _reduce(node: Node) -> tuple[Any, ...]:
    """Return how to make a node again, for `pickle` and `copy`."""
    in_progress = vars(_of_thread).setdefault("dependencies", weakref.WeakSet())
    earlier = None
    if node.inputs and not any(node in each.nodes for each in in_progress):
        known: dict[Node, tuple[Node, ...]] = {x: () for each in in_progress for x in each.nodes}
        found = sorted(toposort([node], known), key=lambda x: x.order[1])
        earlier = _Dependencies(dict.fromkeys(x for x in found if x not in known))
        in_progress.add(earlier)
    facts = {name: getattr(node, name) for name in ("changes", "descent", "source")}
    return _restore, (earlier, node.op, node.inputs, node.specs, facts)


def _restore(earlier: object, op: Op, inputs: Any, specs: Any, facts: dict[str, Any]) -> Node:
    """Return a node with an order of its own: no two nodes have the same."""
    made = Node(op, inputs, specs)
    for name, value in facts.items():
        setattr(made, name, value)
    return made


copyreg.pickle(Node, _reduce)

"""Pickling and copying expressions, however deep they are.

`pickle` and `copy.deepcopy` follow an object to what it is made of, so they would recurse once for
each op.  Before the first expression they get all that it depends on, one after the other; then
each finds its inputs made.
"""

from __future__ import annotations

import copyreg
import threading
import weakref
from typing import Any

from minigraph.graph.graph import toposort
from minigraph.graph.node import Node, Op


class _Dependencies:
    """The nodes that an expression depends on, in the order in which they were made.

    It exists while `pickle` or `copy` is at work, which then remembers these nodes.
    """

    nodes: dict[Node, None]

    def __init__(self, node: Node) -> None:
        known: dict[Node, tuple[Node, ...]] = {}
        for earlier in _in_progress.all:
            known.update(dict.fromkeys(earlier.nodes, ()))
        found = sorted(toposort([node], known), key=lambda x: x.order[1])
        self.nodes = dict.fromkeys(x for x in found if x not in known)
        _in_progress.all.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        *inputs, _ = self.nodes
        return tuple, (inputs,)


class _InProgress(threading.local):
    def __init__(self) -> None:
        self.all: weakref.WeakSet[_Dependencies] = weakref.WeakSet()


_in_progress = _InProgress()


def _reduce(node: Node) -> tuple[Any, ...]:
    """Return how to make a node again, for `pickle` and `copy`."""
    is_known = not node.inputs or any(node in earlier.nodes for earlier in _in_progress.all)
    earlier = None if is_known else _Dependencies(node)
    facts = {name: getattr(node, name) for name in ("changes", "descent", "source")}
    return _restore, (earlier, node.op, node.inputs, node.specs, facts)


def _restore(earlier: object, op: Op, inputs: Any, specs: Any, facts: dict[str, Any]) -> Node:
    """Return a node with an order of its own: no two nodes have the same."""
    made = Node(op, inputs, specs)
    for name, value in facts.items():
        setattr(made, name, value)
    return made


copyreg.pickle(Node, _reduce)

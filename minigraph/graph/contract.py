"""What ops, rules and passes promise, for those who write them: each broken promise is one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigraph.errors import GraphError, ShapeError
from minigraph.graph.graph import Application, Graph, toposort
from minigraph.graph.leaves import Input
from minigraph.graph.node import Node


def checked_gradients(node: Node, grads: Any) -> Sequence[Node | None]:
    """Return what the op's `grad` gave; GraphError unless it is one gradient for each input."""
    promise = f"{node.op.name}: grad returns a tuple of a gradient, or None, for each input"
    if isinstance(grads, Node) or not isinstance(grads, Sequence):
        found = repr(grads) if isinstance(grads, Node) else type(grads).__name__
        raise GraphError(f"{promise}, not {found} {node.source}")
    if len(grads) != len(node.inputs):
        raise GraphError(f"{promise}: {len(node.inputs)}, not {len(grads)} {node.source}")
    for dx in grads:
        if dx is not None and not isinstance(dx, Node):
            raise GraphError(f"{promise}; {type(dx).__name__} is neither {node.source}")
    return grads


def both_sides(name: str, sides: Any, variables: Sequence[Node]) -> tuple[Node, Any]:
    """Return both sides of the rule `name`; GraphError where they cannot be one."""
    if not isinstance(sides, tuple) or len(sides) != 2:
        raise GraphError(f"rule {name}: a rule is a pair of expressions, (before, after)")
    before, after = sides
    if not isinstance(before, Node) or isinstance(before.op, Input):
        raise GraphError(f"rule {name}: the left side is an op of variables, not {before!r}")
    bound = set(toposort([before]))
    if unbound := [x.name for x in variables if x not in bound]:
        raise GraphError(
            f"rule {name}: the left side, {before!r}, says nothing of {', '.join(unbound)}"
        )
    return before, after


def check_rewrite(name: str, old: Graph, new: Any, known: set[Application]) -> None:
    """Raise GraphError unless the pass `name` has made a graph of the same results as `old`.

    known  applications, of `old` too, that need not be inferred again; those of `new` join them
    """
    if not isinstance(new, Graph):
        raise GraphError(f"pass {name}: a pass returns a Graph, not {type(new).__name__}")
    was, now = ([y.specs for y in graph.outputs] for graph in (old, new))
    if was != now:
        raise ShapeError(
            f"pass {name}: the results were {_shown(was)} before it and are {_shown(now)} after it"
        )
    new.check(known, sound=old if new.inputs is old.inputs else ())


def _shown(results: Sequence[Sequence[object]]) -> str:
    return ", ".join(" ".join(map(str, specs)) for specs in results) or "none"

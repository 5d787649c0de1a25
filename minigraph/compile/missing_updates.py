"""A warning for a step that trains layers and forgets the state that they change.

Which state that is, nodes tell (`Node.changes`): nothing here knows of modules.
"""

from __future__ import annotations

from collections.abc import Collection

from minigraph.errors import warn_once
from minigraph.graph import Graph, Node, Parameter, here

LISTED = 3  # layers that the warning names


def warn_of_left_out(graph: Graph, updated: Collection[Parameter]) -> None:
    """Warn if `updated` holds the weights of a layer, but not the state that its call changes.

    Of a layer without weights, if it holds anything that is trained.
    """
    trained = {p for p in updated if p.trainable}
    if not trained:
        return
    places: dict[Node, str] = {}  # by the layer's state: where it was called
    for node in graph:
        for changes in node.changes:
            trains = trained.intersection(changes.weights) if changes.weights else trained
            if trains and not set(updated).issuperset(changes.state):
                places.setdefault(changes.state[0], str(node.source))
    if places:
        listed = "; ".join(list(places.values())[:LISTED])
        more = f"; and {len(places) - LISTED} more" if len(places) > LISTED else ""
        warn_once(
            "compile: evaluation will use wrong statistics, because the step trains layers without "
            f"updating their running ones ({listed}{more}): give updates="
            "{**optimizer.minimize(loss), **net.updates()}, made before net is called again "
            f"or made anew, {here()}",
            cause=f"updates left out: {listed}{more}",
        )

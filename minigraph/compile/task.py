"""What a function is to compute, before it is optimised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from minigraph.distributed import World
from minigraph.graph import Array, Graph, Node, Parameter, with_sizes


@dataclass(frozen=True)
class CompileTask:
    """What a function is to compute: the outputs of `graph`.

    results   how many of the outputs the caller gets; the rest are new values of `updates`
    returned  makes what the caller gets of a list of these results
    world     the processes that do it together, if there are several
    """

    graph: Graph
    inputs: list[Node]
    results: int
    returned: Callable[[list[Array]], Any]
    updates: list[Parameter]
    world: World | None = None

    def with_sizes(self, sizes: Mapping[str, int]) -> CompileTask:
        """Return the task for these values of the symbolic sizes."""
        graph = with_sizes(self.graph, sizes)
        return replace(self, graph=graph, inputs=[*graph.inputs[: len(self.inputs)]])

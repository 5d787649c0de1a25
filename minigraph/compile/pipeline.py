"""From a task's graph to a program: the passes for some options, then lowering."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from minigraph.compile.context import jit_level
from minigraph.compile.task import CompileTask
from minigraph.graph import Graph, Node
from minigraph.inspect.cost import work_of
from minigraph.passes.levels import optimize, pipeline
from minigraph.passes.notes import PassRecord
from minigraph.program import Backend, Program
from minigraph.program.choices import Choices
from minigraph.program.lower import lower
from minigraph.program.memory import plan
from minigraph.program.recomputation import within
from minigraph.runtime.function import Lowered
from minigraph.runtime.stage import timed

Stages = list[tuple[Graph, PassRecord]]  # the graph after each pass, and what the pass did


class Programs:
    """Makes programs of a task's graph with these options, of the choices that are best by then."""

    def __init__(
        self, task: CompileTask, backend: Backend, values: Mapping[str, Any], choices: Choices
    ) -> None:
        self._task = task
        self._backend = backend
        self._choices = choices
        self._limit = values["graph_opt.memory_limit"]
        parameters = {name.rpartition(".")[2]: value for name, value in values.items()}
        parameters |= {
            "level": abs(values["graph_opt_level"]),
            "jit": jit_level(values, backend),
            "costs": choices,
            "gathering": backend.gathering,
            "products": backend.products,
        }
        self._passes = pipeline(
            **parameters,
        )

    def stages(self, took: dict[str, float]) -> Stages:
        """Run the passes; add the seconds to `took`."""
        with timed(took, "optimize"):
            return optimize(self._task.graph, self._passes)

    def lowered(self, stages: Stages, took: dict[str, float]) -> Lowered:
        """Return the program for what the passes have made; add the seconds to `took`."""
        graph = stages[-1][0] if stages else self._task.graph
        with timed(took, "lower"):
            program = self._lowered(graph)
            if self._limit is not None:
                program = within(self._limit, program, self._task.results, self._lowered, work_of)
        return Lowered(program, [record for _, record in stages])

    def _lowered(self, graph: Graph, stay: AbstractSet[Node] = frozenset()) -> Program:
        task, choose = self._task, self._choices.choose
        return plan(lower(graph, task.results, task.updates, self._backend, choose, stay))

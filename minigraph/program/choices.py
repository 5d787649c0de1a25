"""The choices of one compile: kernels, and layouts of images.

The autotuner depends on no op; passes and lowering depend on no measurement.  `Choices` connects
them: the device names the problem of a node, the autotuner measures it, and a policy chooses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from minigraph.autotune.candidate import Problem, first_allowed, layout_names
from minigraph.autotune.measurement import (
    HEURISTIC,
    PREDICTED,
    Measurement,
    choose,
    choose_by_layouts,
)
from minigraph.autotune.session import Session
from minigraph.errors import GraphError, warn_once
from minigraph.graph import Node, Shape
from minigraph.program.device import Backend, Tunable
from minigraph.program.steps import Choice, Kernel


class Choices:
    """The times of a graph's nodes, and the kernels chosen for them.

    Nodes with the same problem and the same layouts share a choice, and so a kernel.

    origin  of a choice without a measurement, for reports
    """

    def __init__(self, backend: Backend, session: Session, origin: str = HEURISTIC) -> None:
        self.backend = backend
        self.session = session
        self.origin = origin
        self._choices: dict[Tunable, Choice] = {}

    def seconds(self, nodes: Sequence[Node]) -> list[Mapping[tuple[int, int], float]]:
        """Return the seconds of each node by layouts, for `assign_layouts`.

        Without measurements the times are estimated, as the layout pass treats a missing time as 0.
        """
        tunables = [*map(self._tunable, nodes)]
        problems = dict.fromkeys(tunable.problem for tunable in tunables if tunable)
        tables = self.session.tables([(problem, ()) for problem in problems])
        by_problem: dict[Problem, dict[tuple[int, int], float]] = {}
        for problem in problems:
            table = tables.get(problem.subject)
            exhaustive = table.measurements if table and table.exhaustive else ()
            best = choose_by_layouts(exhaustive, self.session.policy)
            times = {names: m.seconds for names, m in best.items() if m.seconds is not None}
            by_problem[problem] = {}
            for names, layouts in problem.layouts.items():
                seconds = times.get(names) if times else problem.estimate(layouts)
                if seconds is not None:
                    first, second = (layout.lanes for layout in layouts if layout.lanes)
                    by_problem[problem][first, second] = seconds
        return [by_problem[tunable.problem] if tunable else {} for tunable in tunables]

    def _tunable(self, node: Node) -> Tunable | None:
        return self.backend.tunable(node, [x.spec.strides for x in node.inputs])

    def prepare(self, nodes: Iterable[Node]) -> None:
        """Measure the problems of nodes in one batch, so that all their kernels compile together.

        For a node that reads a view, `choose` measures later, as lowering determines its strides.
        """
        plain = [n for n in nodes if not any(x.is_bundle or x.op.is_view for x in n.inputs)]
        tunables = [tunable for tunable in map(self._tunable, plain) if tunable]
        self.session.tables([tunable for tunable in tunables if tunable.layouts])

    def choose(self, node: Node, strides: Sequence[Shape]) -> Choice | None:
        """Return the choice for a node, given its inputs' strides in bytes.

        None if the node has no candidates.
        """
        tunable = self.backend.tunable(node, strides)
        if tunable is None or not tunable.layouts:
            return None
        if tunable not in self._choices:
            self._choices[tunable] = self._choose(tunable, node)
            tunable.problem.release()
        return self._choices[tunable]

    def _choose(self, tunable: Tunable, node: Node) -> Choice:
        problem, layouts = tunable
        names = layout_names(layouts)
        table = self.session.tables([tunable]).get(problem.subject)
        measurements = table.measurements if table else ()
        alternatives = [m for m in measurements if not m.predicted]
        fitting = [m for m in measurements if m.layouts == names]
        best = self._best(fitting, node)
        kernel: Kernel | None = None
        with contextlib.suppress(GraphError):  # this version of the library may lack the candidate
            kernel = problem.kernel(best) if best else None
        if table and kernel:
            origin = PREDICTED if best and best.predicted else table.origin
            return Choice(problem, names, kernel, best, origin, alternatives)
        failed = {m.key: m.error for m in fitting if m.error}
        untried = (c for c in problem.candidates(layouts) if c.key not in failed)
        kernel = first_allowed(untried, self.session.policy)
        if kernel is None and failed:
            warn_once(
                f"each algorithm of {problem.kind} has failed for {problem.subject} "
                f"({next(iter(failed.values()))}), so NumPy or a generated kernel computes it",
                cause=f"each algorithm for {problem.subject}",
            )
        return Choice(problem, names, kernel, None, self.origin, alternatives)

    def _best(self, measurements: Sequence[Measurement], node: Node) -> Measurement | None:
        policy = self.session.policy
        best = choose(measurements, policy)
        over_limit = [m for m in measurements if not policy.unlimited.allows(m)]
        if best or not over_limit:
            return best
        smallest = min(over_limit, key=lambda m: m.workspace)
        warn_once(
            f"every algorithm for {node.op.name} exceeds the limit on workspaces; {smallest.name} "
            f"is used, which needs the smallest, {smallest.workspace} bytes",
            cause="limit on workspaces",
        )
        return smallest

    def quarantine(self, choice: Choice, reason: str) -> None:
        """Exclude a candidate that failed at run time from all later choices."""
        assert choice.measurement is not None, "a heuristic is not measured"
        self.session.quarantine(choice.problem.subject, choice.measurement, reason)
        self._choices.clear()

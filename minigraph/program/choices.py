"""The choices of one compile: which kernels, and which layouts of images.

The autotuner knows no op, the passes and the lowering know no measurements.  `Choices` asks the
device what there is to choose for a node, and the autotuner what it has measured of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from minigraph.autotune.candidate import Problem
from minigraph.autotune.measurement import Measurement, ProblemTable
from minigraph.autotune.policy import choose, first_allowed
from minigraph.autotune.session import Session
from minigraph.errors import GraphError, warn_once
from minigraph.graph import Node, Shape
from minigraph.ops.layout import is_image_layout, lanes_of
from minigraph.program.device import Backend, Tunable
from minigraph.program.steps import Choice, Kernel

HEURISTIC = "heuristic"


class Choices:
    """What is known of the nodes of a graph, and what was chosen for them.

    Nodes that are the same problem in the same layouts share a choice, hence a kernel.
    """

    def __init__(self, backend: Backend, session: Session) -> None:
        self.backend = backend
        self.session = session
        self._by_lanes: dict[str, dict[tuple[int, int], float]] = {}  # by subject
        self._estimates: dict[str, dict[tuple[int, int], float]] = {}  # likewise
        self._made: dict[tuple[str, tuple[str, ...]], Choice] = {}  # by subject and layouts

    # ------------------------------------------------------------ layouts: `Costs` of the passes

    @property
    def block(self) -> int:
        """The lanes of the device's blocked layout."""
        return self.backend.block

    def measure(self, nodes: Sequence[Node]) -> None:
        """Find the times of nodes."""
        tunables = [tunable for tunable in map(self._tunable, nodes) if tunable]
        tables = self.session.tables([tunable.problem for tunable in tunables])
        for tunable in tunables:
            if tunable.problem.subject in tables:
                table, _ = tables[tunable.problem.subject]
                self._by_lanes[table.subject] = self._seconds(tunable, table)

    def seconds(self, node: Node) -> Mapping[tuple[int, int], float]:
        """Return the times of a node by the lanes of its two images; empty if nothing is known."""
        tunable = self._tunable(node)
        if tunable is None:
            return {}
        problem = tunable.problem
        measured = self._by_lanes.get(problem.subject)
        if measured:
            return measured
        if problem.subject not in self._estimates:
            self._estimates[problem.subject] = _estimated(problem)
        return self._estimates[problem.subject]

    def _seconds(self, tunable: Tunable, table: ProblemTable) -> dict[tuple[int, int], float]:
        """Return the time of the best candidate for each pair of lanes of the two images."""
        problem = tunable.problem
        groups: dict[tuple[str, ...], list[Measurement]] = {}
        for measurement in table.measurements:
            groups.setdefault(measurement.layouts, []).append(measurement)
        times: dict[tuple[int, int], float] = {}
        for layouts, group in groups.items():
            best = choose(group, self.session.policy)
            if best is not None and best.seconds is not None:
                times[_image_lanes(problem, layouts)] = best.seconds
        return times

    def _tunable(self, node: Node) -> Tunable | None:
        return self.backend.tunable(node, [x.spec.strides for x in node.inputs])

    # ------------------------------------------------------------ kernels

    def choose(self, node: Node, strides: Sequence[Shape]) -> Choice | None:
        """Return the choice for a node whose inputs have these strides, in bytes.

        None where there is nothing to choose.
        """
        tunable = self.backend.tunable(node, strides)
        if tunable is None or not tunable.layouts:
            return None
        key = tunable.problem.subject, tunable.layouts
        if key not in self._made:
            self._made[key] = self._choose(tunable, node)
        return self._made[key]

    def _choose(self, tunable: Tunable, node: Node) -> Choice:
        problem, layouts = tunable
        table, origin = self.session.tables([problem]).get(problem.subject, (None, HEURISTIC))
        rivals = table.measurements if table else ()
        fitting = [m for m in rivals if m.layouts == layouts]
        best = self._best(fitting, node)
        kernel = self._make(tunable, best) if best else None
        if kernel:
            return Choice(problem, layouts, kernel, best, origin, rivals)
        # Where all have failed, or none is allowed, the library's heuristic has nothing to offer.
        if best or not fitting:
            kernel = cast(
                Kernel | None, first_allowed(problem.candidates(layouts), self.session.policy)
            )
        return Choice(problem, layouts, kernel, None, HEURISTIC, rivals)

    def _best(self, measurements: Sequence[Measurement], node: Node) -> Measurement | None:
        policy = self.session.policy
        best = choose(measurements, policy)
        allowed = [m for m in measurements if not policy.unlimited.allows(m)]
        if best or not allowed:
            return best
        least = min(allowed, key=lambda m: m.workspace)
        warn_once(
            f"no algorithm for {node.op.name} keeps the limit on its workspace; {least.name} is "
            f"used, which needs the least, {least.workspace} bytes",
            cause="limit on workspaces",
        )
        return least

    def _make(self, tunable: Tunable, measurement: Measurement) -> Kernel | None:
        """Return the kernel that was measured; None where the library has it no longer."""
        make = self.session.maker(tunable.problem, measurement)
        try:
            return cast(Kernel, make()) if make else None
        except GraphError:
            return None

    def quarantine(self, choice: Choice, why: str) -> None:
        """Let nobody choose a candidate again that failed."""
        assert choice.measurement is not None, "a heuristic is not measured"
        subject = choice.problem.subject
        self.session.quarantine(subject, choice.measurement, why)
        self._by_lanes.pop(subject, None)
        self._made.clear()


def _estimated(problem: Problem) -> dict[tuple[int, int], float]:
    """Return roughly the time for each pair of lanes of the two images; empty if nothing is known.

    Without it, what was not measured would seem to take no time where it is.
    """
    if problem.estimate is None:
        return {}
    return {_image_lanes(problem, each): problem.estimate(each) for each in problem.layouts}


def _image_lanes(problem: Problem, layouts: tuple[str, ...]) -> tuple[int, int]:
    """Return the lanes of the two images among the operands of a problem."""
    specs = (*problem.inputs, *problem.results)
    first, second = (
        lanes_of(layout, *spec.shape[1:2])
        for layout, spec in zip(layouts, specs, strict=True)
        if is_image_layout(layout)
    )
    return first, second

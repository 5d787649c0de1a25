"""The algorithms and layouts of one compile: between the autotuner, the passes and the device.

The autotuner knows no op, the passes and the lowering no measurements; this asks the device what
there is to choose, the autotuner what it takes, and remembers what was chosen for the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from minigraph.autotune.choice import Algorithm
from minigraph.autotune.measurement import Measurement, ProblemTable
from minigraph.autotune.policy import choose
from minigraph.autotune.session import Session
from minigraph.errors import warn_once
from minigraph.graph import Node, Shape
from minigraph.ops.layout import is_image_layout, lanes_of
from minigraph.program import NUMPY, Backend, Tunable


class Tuning:
    """What is known of the nodes of a graph, and what was chosen for them."""

    def __init__(self, backend: Backend, session: Session) -> None:
        self.backend = backend
        self.session = session
        self.policy = session.policy
        self._by_lanes: dict[str, dict[tuple[int, int], float]] = {}  # by subject

    # ------------------------------------------------------------ for the choice of layouts

    @property
    def block(self) -> int:
        """The lanes of the device's blocked layout."""
        return self.backend.block

    @property
    def channels_last(self) -> bool:
        """Whether normalisations are fast with the channels last."""
        return self.backend.channels_last

    def measure(self, nodes: Sequence[Node]) -> None:
        """Find the times of nodes."""
        found = [tunable for tunable in map(self._tunable, nodes) if tunable]
        tables = self.session.tables([tunable.problem for tunable in found])
        for tunable in found:
            if tunable.problem.subject in tables:
                table, _ = tables[tunable.problem.subject]
                self._by_lanes[table.subject] = self._seconds(tunable, table)

    def seconds(self, node: Node) -> Mapping[tuple[int, int], float]:
        """Return the times of a node by the lanes of its two images; empty if nothing is known."""
        tunable = self._tunable(node)
        return self._by_lanes.get(tunable.problem.subject, {}) if tunable else {}

    def _seconds(self, tunable: Tunable, table: ProblemTable) -> dict[tuple[int, int], float]:
        """The time of the algorithm of choice for each pair of lanes of the two images."""
        problem = tunable.problem
        channels = [spec.shape[1:2] for spec in (*problem.inputs, *problem.results)]
        groups: dict[tuple[str, ...], list[Measurement]] = {}
        for measurement in table.measurements:
            groups.setdefault(measurement.layouts, []).append(measurement)
        found: dict[tuple[int, int], float] = {}
        for layouts, group in groups.items():
            images = [i for i, layout in enumerate(layouts) if is_image_layout(layout)]
            first, second = (lanes_of(layouts[i], *channels[i]) for i in images)
            chosen = choose(group, self.policy)
            if chosen is not None and chosen.seconds is not None:
                found[first, second] = chosen.seconds
        return found

    def _tunable(self, node: Node) -> Tunable | None:
        return self.backend.tunable(node, [x.spec.strides for x in node.inputs])

    # ------------------------------------------------------------ for lowering

    def algorithm(self, node: Node, strides: Sequence[Shape]) -> Algorithm | None:
        """Return the algorithm for a node whose inputs have these strides, in bytes.

        None where there is nothing to choose; one without a name leaves it to the device.
        """
        tunable = self.backend.tunable(node, strides)
        if tunable is None or not tunable.layouts:
            return None
        table, origin = self.session.tables([tunable.problem]).get(
            tunable.problem.subject, (None, "heuristic")
        )
        fitting = [m for m in table.measurements if m.layouts == tunable.layouts] if table else []
        chosen = self._chosen(fitting, node)
        # Where all have failed, or none is allowed, the library's heuristic has nothing to offer.
        without = NUMPY if fitting and not chosen else ""
        return Algorithm(
            op=node.op.name,
            result=", ".join(map(str, node.specs)),
            line=str(node.source),
            subject=tunable.problem.subject,
            name=chosen.name if chosen else without,
            layout=" ".join(tunable.layouts),
            seconds=chosen.seconds if chosen else None,
            workspace=chosen.workspace if chosen else None,
            origin=origin if chosen else "heuristic",
            candidates=list(table.measurements) if table else [],
        )

    def _chosen(self, measurements: Sequence[Measurement], node: Node) -> Measurement | None:
        chosen = choose(measurements, self.policy)
        unlimited = replace(self.policy, workspace_limit=None)
        allowed = [m for m in measurements if not unlimited.allows(m)]
        if chosen or not allowed:
            return chosen
        least = min(allowed, key=lambda m: m.workspace)
        warn_once(
            f"no algorithm for {node.op.name} keeps the limit on its workspace; {least.name} is "
            f"used, which needs the least, {least.workspace} bytes"
        )
        return least

    def quarantine(self, algorithm: Algorithm, why: str) -> None:
        """Let nobody choose an algorithm again that failed."""
        layouts = tuple(algorithm.layout.split())
        for m in algorithm.candidates:
            if (m.name, m.layouts) == (algorithm.name, layouts):
                self.session.quarantine(algorithm.subject, m, why)
        self._by_lanes.pop(algorithm.subject, None)

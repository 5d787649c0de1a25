"""Records of passes: the rewrites that fired, and the neighbours that were not fused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from minigraph.graph import Node


@dataclass(frozen=True)
class MissedFusion:
    """Two neighbouring ops that were not fused, and the reason.

    line    the user's line that made the producer
    orders  sort keys of the two nodes, which stay the same while passes replace nodes
    """

    producer: str
    consumer: str
    reason: str
    line: str
    orders: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.producer} -> {self.consumer}: {self.reason} ({self.line})"


@dataclass
class Notes:
    """The notes of one run of one pass.

    fired  number of applications of each rewrite, by name
    stops  neighbours that were not fused
    """

    fired: Counter[str] = field(default_factory=Counter)
    stops: list[MissedFusion] = field(default_factory=list)

    def miss(self, producer: Node, consumer: Node, reason: str) -> None:
        orders = producer.order[0], consumer.order[0]
        line = str(producer.source)
        self.stops.append(MissedFusion(producer.op.name, consumer.op.name, reason, line, orders))


@dataclass(frozen=True)
class PassRecord:
    """One run of a pass: the number of nodes before and after it, its time, and its notes."""

    name: str
    before: int
    after: int
    seconds: float
    fired: dict[str, int] = field(default_factory=dict)
    stops: list[MissedFusion] = field(default_factory=list)

    def __str__(self) -> str:
        fired = ", ".join(f"{name} {count}" for name, count in self.fired.items())
        return f"{self.name}: {self.before} -> {self.after} nodes{f' ({fired})' if fired else ''}"

"""What a compiled function tells about itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class MemoryUse:
    """Bytes.  `unplanned_bytes` is the arena if no memory were used twice."""

    peak_bytes: int
    arena_bytes: int
    parameter_bytes: int
    unplanned_bytes: int


@dataclass(frozen=True)
class PassRecord:
    """One pass over the graph: nodes before and after it, and how often each rewrite fired."""

    name: str
    before: int
    after: int
    seconds: float
    fired: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        fired = ", ".join(f"{name} {count}" for name, count in self.fired.items())
        return f"{self.name}: {self.before} -> {self.after} nodes" + (
            f" ({fired})" if fired else ""
        )


@dataclass(frozen=True)
class Report:
    """How a function came to be and what it executes; `print` it.

    ops          how often each op is executed
    steps        for each step in order: the op, what computes it, and its result
    passes       what each pass made of the graph
    kernels      generated kernels
    stops        pairs of neighbours that were not fused, and why
    algorithms   the choice for each convolution and product
    launches     native entries from Python per call
    syncs        device synchronisations per call
    seconds      compile time by stage
    options      the options it was compiled with
    ineffective  options that ask for what this version does not do yet, and why
    """

    device: str
    ops: Counter[str]
    steps: list[tuple[str, str, str]]
    memory: MemoryUse
    launches: int
    syncs: int
    seconds: dict[str, float]
    fingerprint: str
    options: dict[str, Any]
    ineffective: dict[str, str]
    passes: list[PassRecord] = field(default_factory=list)
    kernels: list[Any] = field(default_factory=list)
    stops: list[Any] = field(default_factory=list)
    algorithms: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        mib = 1 << 20
        makers = Counter(made.split()[0] for _, made, _ in self.steps)
        memory = self.memory
        lines = [
            f"function {self.fingerprint[:7]} on {self.device}",
            f"  steps      {len(self.steps)}: "
            + ", ".join(f"{count} by {name}" for name, count in makers.most_common()),
            "  ops        "
            + ", ".join(f"{name} {count}" for name, count in self.ops.most_common()),
            f"  memory     {memory.arena_bytes / mib:.1f} MiB arena "
            f"({memory.unplanned_bytes / mib:.1f} without reuse), "
            f"{memory.parameter_bytes / mib:.1f} MiB parameters",
            f"  a call     {self.launches} native calls, {self.syncs} synchronisations",
            "  compiled   "
            + ", ".join(f"{stage} {seconds:.3f} s" for stage, seconds in self.seconds.items()),
        ]
        lines += [f"  pass       {record}" for record in self.passes]
        lines += [f"  no effect  {name}: {why}" for name, why in self.ineffective.items()]
        return "\n".join(lines)

"""What a compiled function tells about itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from minigraph.autotune.measurement import Measurement
from minigraph.passes.notes import PassRecord, Stop
from minigraph.program import Step


@dataclass(frozen=True)
class MemoryUse:
    """Bytes.  `unplanned_bytes` is the arena if no memory were used twice."""

    peak_bytes: int
    arena_bytes: int
    parameter_bytes: int
    unplanned_bytes: int


@dataclass(frozen=True)
class GeneratedKernel:
    """A kernel that was generated for a group of ops.

    name     of the function in the text; equal kernels have equal names
    ops      the names of the ops that it computes
    inputs   how many arrays it reads
    outputs  how many it writes
    bytes    that it reads and writes at least
    source   its text
    lines    of the user's code that the ops were made at
    """

    name: str
    ops: list[str]
    inputs: int
    outputs: int
    bytes: int
    source: str
    lines: list[str]

    def __str__(self) -> str:
        shown = ", ".join(self.ops[:12]) + (", ..." if len(self.ops) > 12 else "")
        return f"{self.name}: {shown}; {self.inputs} in, {self.outputs} out"


@dataclass(frozen=True)
class Algorithm:
    """What computes a convolution or product, and what else there was.

    result      the spec of its result
    line        the user's
    subject     what was measured, in words
    name        of the algorithm
    layout      of each input, then of the result
    seconds     that it took when it was measured; None if it was not
    workspace   bytes; None if it was not measured
    origin      "measured" now, "stored", "loaded file", or "heuristic"
    candidates  all that were measured, in every layout
    """

    op: str
    result: str
    line: str
    subject: str
    name: str
    layout: str
    seconds: float | None
    workspace: int | None
    origin: str
    candidates: list[Measurement]

    def __str__(self) -> str:
        seconds = "" if self.seconds is None else f", {self.seconds * 1e3:.2f} ms"
        of = f" of {len(self.candidates)}" if self.candidates else ""
        return f"{self.op} {self.result}: {self.name} in {self.layout} ({self.origin}{of}{seconds})"


def algorithm(step: Step) -> Algorithm | None:
    """Return what a step's kernel was chosen from; None where there was no choice."""
    choice = step.choice
    if choice is None:
        return None
    kernel = choice.kernel or step.kernel
    return Algorithm(
        op=step.node.op.name,
        result=", ".join(map(str, step.node.specs)),
        line=str(step.node.source),
        subject=choice.problem.subject,
        name=kernel.algorithm or kernel.maker,
        layout=" ".join(choice.layouts),
        seconds=choice.measurement.seconds if choice.measurement else None,
        workspace=choice.measurement.workspace if choice.measurement else None,
        origin=choice.origin,
        candidates=list(choice.rivals),
    )


@dataclass(frozen=True)
class Report:
    """How a function came to be and what it executes; `print` it.

    ops          how often each op is executed
    steps        for each step in order: the op, the name of its kernel, and its result; those of a
                 loop's body follow the loop, and so it is with all that is listed here
    makers       how many steps each maker of kernels computes: "c", "onednn", "numpy", ...
    passes       what each pass made of the graph
    kernels      generated kernels
    numpy        steps that NumPy computes although the device has kernels: op, results, why, line
    stops        pairs of neighbours that were not fused, and why
    algorithms   the choice for each convolution and product, each direction
    launches     native entries from Python per call
    syncs        device synchronisations per call
    seconds      compile time by stage
    options      the options it was compiled with
    ineffective  options whose values have no effect on the device, and why
    """

    device: str
    ops: Counter[str]
    steps: list[tuple[str, str, str]]
    makers: Counter[str]
    memory: MemoryUse
    launches: int
    syncs: int
    seconds: dict[str, float]
    fingerprint: str
    options: dict[str, Any]
    ineffective: dict[str, str]
    passes: list[PassRecord] = field(default_factory=list)
    kernels: list[GeneratedKernel] = field(default_factory=list)
    numpy: list[str] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    algorithms: list[Algorithm] = field(default_factory=list)

    def __str__(self) -> str:
        mib = 1 << 20
        memory = self.memory
        lines = [
            f"function {self.fingerprint[-7:]} on {self.device}",
            f"  steps      {len(self.steps)}: "
            + ", ".join(f"{count} by {name}" for name, count in self.makers.most_common()),
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
        lines += [
            f"  kernel     {count} x {k}" for k, count in Counter(map(str, self.kernels)).items()
        ]
        lines += [
            f"  algorithm  {count} x {a}" for a, count in Counter(map(str, self.algorithms)).items()
        ]
        lines += [f"  in NumPy   {step}" for step in self.numpy]
        reasons = Counter(stop.reason for stop in self.stops)
        lines += [f"  not fused  {count} x {why}" for why, count in reasons.most_common()]
        lines += [f"  no effect  {name}: {why}" for name, why in self.ineffective.items()]
        return "\n".join(lines)

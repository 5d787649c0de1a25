"""How long each kernel of a function took, beside an estimate of how fast it can be."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from minigraph.compiler.pipeline import Compilation
from minigraph.devices.cost import cost_of
from minigraph.inspect.record import KernelTime
from minigraph.inspect.report import counted, preformatted
from minigraph.inspect.roofline import GIGA, Speeds, speeds
from minigraph.inspect.trace import trace
from minigraph.platform.regular_file import write_text
from minigraph.program import Step, Timing
from minigraph.program.memory import in_use

MOST = 15  # rows of a table


@dataclass(frozen=True)
class Cost:
    """What some kernels take together.

    share     of the time of the whole profile
    roofline  an estimate of the share of their time that they take at the device's full speed; over
              1 where data stay in caches, or an algorithm needs fewer operations; None where that
              speed is not known
    """

    name: str
    kernels: int
    seconds: float
    bytes: int
    flops: int
    share: float
    roofline: float | None


@dataclass(frozen=True, repr=False)
class Profile:
    """The kernels of a call, in order, each with the median time of some calls; `print` it.

    calls      how many there were
    speeds     what the device reached in a copy and in a matrix product; None if it is not known
    """

    kernels: list[KernelTime]
    calls: int = 1
    speeds: Speeds | None = None

    @property
    def seconds(self) -> float:
        """All kernels together."""
        return sum(k.seconds for k in self.kernels)

    @property
    def by_layer(self) -> list[Cost]:
        """What each layer takes, the slowest first; outside of layers, each line of the program."""
        return self._costs(lambda kernel: kernel.layer)

    @property
    def by_op(self) -> list[Cost]:
        """What all ops of a name take, the slowest first."""
        return self._costs(lambda kernel: kernel.name)

    @property
    def by_kernel(self) -> list[Cost]:
        """What all ops of a name take that the same kernel computes, the slowest first."""
        return self._costs(lambda kernel: f"{kernel.name} by {kernel.kernel}")

    def _costs(self, key: Callable[[KernelTime], str]) -> list[Cost]:
        groups: dict[str, list[KernelTime]] = {}
        for kernel in self.kernels:
            groups.setdefault(key(kernel), []).append(kernel)
        costs = [self._cost(name, group) for name, group in groups.items()]
        return sorted(costs, key=lambda cost: -cost.seconds)

    def _cost(self, name: str, kernels: Sequence[KernelTime]) -> Cost:
        seconds = sum(k.seconds for k in kernels)
        estimates = [self.speeds.estimate(k.bytes, k.flops) for k in kernels if self.speeds]
        return Cost(
            name=name,
            kernels=len(kernels),
            seconds=seconds,
            bytes=sum(k.bytes for k in kernels),
            flops=sum(k.flops for k in kernels),
            share=seconds / (self.seconds or 1.0),
            roofline=sum(estimates) / seconds if estimates and seconds else None,
        )

    def __str__(self) -> str:
        speed = ""
        if self.speeds:
            bandwidth, peak = (value / GIGA for value in self.speeds)
            speed = f"\nroofline: estimated from {bandwidth:.1f} GB/s and {peak:,.0f} GFLOP/s"
        kernels, calls = counted(len(self.kernels), "kernel"), counted(self.calls, "call")
        head = f"{1e3 * self.seconds:.3f} ms in {kernels}, median of {calls}{speed}"
        tables = (_table("layer", self.by_layer), _table("kernel", self.by_kernel))
        return "\n".join([head, *(line for table in tables for line in table)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the kernels, and what layers, ops and kernels take, as JSON's types."""
        costs = {"by_layer": self.by_layer, "by_op": self.by_op, "by_kernel": self.by_kernel}
        everything: dict[str, Any] = msgspec.to_builtins({**vars(self), **costs})
        return {**everything, "seconds": self.seconds}

    def to_chrome_trace(self, path: str | Path) -> None:
        """Write a trace that chrome://tracing and Perfetto show.

        A track for each thread has the kernels that it may run, the tracks of layers have those
        that the kernels belong to, and a counter has the memory in use.
        """
        write_text(path, trace(self.kernels))


def profile_of(compilation: Compilation, runs: Sequence[Sequence[Timing]]) -> Profile:
    """Return the profile of calls of what was compiled."""
    program = compilation.program
    memory = dict(zip(program.steps, in_use(program), strict=True))
    # Parts of a step may have been timed one by one.
    seconds: list[dict[Step, float]] = [{} for _ in runs]
    for run, own in zip(runs, seconds, strict=True):
        for timing in run:
            own[timing.step] = own.get(timing.step, 0.0) + timing.seconds
    kernels: list[KernelTime] = []
    start = 0.0
    for step in seconds[0]:
        took = statistics.median(each[step] for each in seconds)
        cost = cost_of(step)
        kernels.append(
            KernelTime(
                name=step.node.op.name,
                kernel=step.kernel.name,
                result=", ".join(map(str, step.node.specs)),
                line=str(step.node.source),
                start=start,
                seconds=took,
                layer=step.node.source.brief,
                bytes=cost.bytes,
                flops=cost.flops,
                threads=step.kernel.threads,
                memory=memory[step],
            )
        )
        start += took
    return Profile(kernels, len(runs), speeds(compilation.context, program))


def _table(title: str, costs: Sequence[Cost]) -> list[str]:
    shown = costs[:MOST]
    width = max([len(cost.name) for cost in shown] + [len(title)])
    names = f"{'kernels':>7} {'ms':>9} {'share':>6} {'MB':>9} {'MFLOP':>10} {'roofline':>8}"
    lines = [f"{title:{width}} {names}"]
    for c in shown:
        roofline = "" if c.roofline is None else f"{c.roofline:8.0%}"
        lines.append(
            f"{c.name:{width}} {c.kernels:7} {1e3 * c.seconds:9.3f} {c.share:6.1%} "
            f"{c.bytes / 1e6:9.2f} {c.flops / 1e6:10.2f} {roofline}".rstrip()
        )
    if len(costs) > MOST:
        rest = sum(cost.seconds for cost in costs[MOST:])
        lines.append(f"{len(costs) - MOST} more take {1e3 * rest:.3f} ms")
    return lines

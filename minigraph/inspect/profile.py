"""The time of each kernel of a function, beside its roofline."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from minigraph.compiler.pipeline import Compilation
from minigraph.devices.cost import cost_of
from minigraph.inspect.record import KernelTime, layer_path
from minigraph.inspect.report import cost_table, counted, preformatted
from minigraph.inspect.roofline import GIGA, Cost, Speeds, costs, speeds
from minigraph.platform.regular_file import write_text
from minigraph.program import Step, Timing
from minigraph.program.memory import in_use

MAX_ROWS = 15  # rows of a table
THREADS, LAYERS = 1, 2  # the groups of tracks in a trace, which its format calls processes
Event = dict[str, Any]


@dataclass(frozen=True, repr=False)
class Profile:
    """The kernels of a call, in order, each with its median time over `calls`; `print` it.

    calls      number of calls
    speeds     of the device in a copy and in a matrix product; None if unknown
    """

    kernels: list[KernelTime]
    calls: int = 1
    speeds: Speeds | None = None

    @property
    def seconds(self) -> float:
        """The time of all kernels together."""
        return sum(k.seconds for k in self.kernels)

    @property
    def by_layer(self) -> list[Cost]:
        """The cost of each layer, the slowest first; outside of layers, of each line."""
        return self._costs(lambda kernel: kernel.layer)

    @property
    def by_op(self) -> list[Cost]:
        """The cost of all ops of each name, the slowest first."""
        return self._costs(lambda kernel: kernel.name)

    @property
    def by_kernel(self) -> list[Cost]:
        """The cost of all ops of each name and kernel, the slowest first."""
        return self._costs(lambda kernel: f"{kernel.name} by {kernel.kernel}")

    def _costs(self, name: Callable[[KernelTime], str]) -> list[Cost]:
        return costs(((name(k), k, k.seconds) for k in self.kernels), self.speeds)

    def __str__(self) -> str:
        speed = ""
        if self.speeds:
            bandwidth, peak = (value / GIGA for value in self.speeds)
            speed = f"\nroofline: estimated from {bandwidth:.1f} GB/s and {peak:,.0f} GFLOP/s"
        kernels, calls = counted(len(self.kernels), "kernel"), counted(self.calls, "call")
        head = f"{1e3 * self.seconds:.3f} ms in {kernels}, median of {calls}{speed}"
        tables = _table("layer", self.by_layer), _table("kernel", self.by_kernel)
        return "\n".join([head, *(line for table in tables for line in table)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the kernels, and the costs by layer, op and kernel, as JSON's types."""
        costs = {"by_layer": self.by_layer, "by_op": self.by_op, "by_kernel": self.by_kernel}
        everything: dict[str, Any] = msgspec.to_builtins({**vars(self), **costs})
        return {**everything, "seconds": self.seconds}

    def to_chrome_trace(self, path: str | Path) -> None:
        """Write a trace in the Trace Event Format, which chrome://tracing and Perfetto show.

        Each thread has a track with the kernels that it may run.  Further tracks show the layers
        of the kernels, and a counter shows the memory in use.
        """
        kernels = self.kernels
        events = [*_track_names(kernels), *_kernel_events(kernels), *_layer_events(kernels)]
        write_text(path, json.dumps({"traceEvents": events}))


def profile_of(compilation: Compilation, runs: Sequence[Sequence[Timing]]) -> Profile:
    program = compilation.program
    memory = dict(zip(program.steps, in_use(program), strict=True))
    # A step may have several timings, of its parts.
    seconds: list[dict[Step, float]] = [{} for _ in runs]
    for run, step_seconds in zip(runs, seconds, strict=True):
        for timing in run:
            step_seconds[timing.step] = step_seconds.get(timing.step, 0.0) + timing.seconds
    kernels: list[KernelTime] = []
    start = 0.0
    for step in seconds[0]:
        median = statistics.median(each[step] for each in seconds)
        cost = cost_of(step)
        kernels.append(
            KernelTime(
                name=step.node.op.name,
                kernel=step.kernel.name,
                result=", ".join(map(str, step.node.specs)),
                line=str(step.node.source),
                start=start,
                seconds=median,
                layer=step.node.source.brief,
                bytes=cost.bytes,
                flops=cost.flops,
                threads=step.kernel.threads,
                memory=memory[step],
            )
        )
        start += median
    return Profile(kernels, len(runs), speeds(compilation.context, program))


def _table(title: str, all_costs: Sequence[Cost]) -> list[str]:
    lines, others = cost_table(title, all_costs[:MAX_ROWS]), all_costs[MAX_ROWS:]
    if others:
        seconds = sum(cost.seconds or 0.0 for cost in others)
        lines.append(f"{len(others)} more take {1e3 * seconds:.3f} ms")
    return lines


def _track_names(kernels: Sequence[KernelTime]) -> Iterator[Event]:
    threads = max((k.threads for k in kernels), default=1)
    depths = max((len(layer_path(k.layer)) for k in kernels), default=1)
    names = [("process_name", THREADS, 0, "kernels"), ("process_name", LAYERS, 0, "layers")]
    names += [("thread_name", THREADS, i, f"thread {i}") for i in range(threads)]
    names += [("thread_name", LAYERS, i, f"depth {i + 1}") for i in range(depths)]
    for what, group, track, name in names:
        yield {"name": what, "ph": "M", "pid": group, "tid": track, "args": {"name": name}}


def _kernel_events(kernels: Sequence[KernelTime]) -> Iterator[Event]:
    for k in kernels:
        details = msgspec.to_builtins(k)
        for thread in range(k.threads):
            yield _event(k.name, THREADS, thread, k.start, k.seconds, details)
        memory = {"bytes": k.memory}
        yield {"name": "arena", "ph": "C", "pid": THREADS, "ts": 1e6 * k.start, "args": memory}


def _layer_events(kernels: Sequence[KernelTime]) -> Iterator[Event]:
    """Yield one event for consecutive kernels of a layer, and for those of the layers around it."""
    open_layers: list[tuple[str, float]] = []  # path and start, by depth
    end = 0.0
    for k in (*kernels, None):
        parts = layer_path(k.layer) if k else []
        paths = [".".join(parts[: i + 1]) for i in range(len(parts))]
        same = sum(1 for old, new in zip(open_layers, paths, strict=False) if old[0] == new)
        for depth, (path, start) in [*enumerate(open_layers)][same:]:
            yield _event(path, LAYERS, depth, start, end - start, {})
        if k:
            open_layers = [*open_layers[:same], *((path, k.start) for path in paths[same:])]
            end = k.start + k.seconds


def _event(name: str, group: int, track: int, start: float, time: float, details: Event) -> Event:
    event = {"name": name, "ph": "X", "pid": group, "tid": track}
    return {**event, "ts": 1e6 * start, "dur": 1e6 * time, "args": details}

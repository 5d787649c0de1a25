"""Traces of a call in the Trace Event Format, which chrome://tracing and Perfetto show."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from minigraph.inspect.record import KernelTime, layer_path

THREADS, LAYERS = 1, 2  # what the format calls processes: groups of tracks


def trace(kernels: Sequence[KernelTime]) -> str:
    """Return the trace: a track for each thread, one for each depth of layers, and the memory."""
    events = [*_names(kernels), *_kernels(kernels), *_layers(kernels)]
    return json.dumps({"traceEvents": events})


def _names(kernels: Sequence[KernelTime]) -> Iterator[dict[str, Any]]:
    yield _name("process_name", THREADS, 0, "kernels")
    yield _name("process_name", LAYERS, 0, "layers")
    for thread in range(max((k.threads for k in kernels), default=1)):
        yield _name("thread_name", THREADS, thread, f"thread {thread}")
    for depth in range(max((len(layer_path(k.layer)) for k in kernels), default=1)):
        yield _name("thread_name", LAYERS, depth, f"depth {depth + 1}")


def _name(what: str, group: int, track: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": group, "tid": track, "args": {"name": name}}


def _kernels(kernels: Sequence[KernelTime]) -> Iterator[dict[str, Any]]:
    for k in kernels:
        for thread in range(k.threads):
            yield _event(k.name, THREADS, thread, k.start, k.seconds, msgspec.to_builtins(k))
        yield {
            "name": "arena",
            "ph": "C",
            "pid": THREADS,
            "ts": 1e6 * k.start,
            "args": {"bytes": k.memory},
        }


def _layers(kernels: Sequence[KernelTime]) -> Iterator[dict[str, Any]]:
    """Yield neighbours of one layer as one event, and so for the layers that it is in."""
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


def _event(
    name: str, group: int, track: int, start: float, seconds: float, details: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "X",
        "pid": group,
        "tid": track,
        "ts": 1e6 * start,
        "dur": 1e6 * seconds,
        "args": details,
    }

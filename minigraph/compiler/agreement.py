"""Agreement of the processes of a world before they run a function together.

The processes compile the same graph with the same options, start from the same parameters, choose
from the same measurements, and call with the same sizes.  With a difference, they would wait for
different collectives.  So a difference raises an error, which names it, in all processes.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.compiler.trace import TracedGraph
from minigraph.distributed import World
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import Constant, FromSizes, Node, nested
from minigraph.ops.collective import Collective
from minigraph.options import fingerprint_text, num_threads
from minigraph.program import Backend
from minigraph.version import __version__

COMPILE_TIMEOUT = 120.0  # seconds that the processes wait while one of them compiles


def agree_on_graph(traced: TracedGraph, device: str, options: Mapping[str, Any]) -> World | None:
    """Return the world of a function's collectives; None without other processes.

    Process 0 sends its parameters to the others.  Raises GraphError if the graphs or options of two
    processes differ, or if the body of a loop has a collective.
    """
    for body in [*nested(traced.graph)][1:]:
        for node in body:
            if isinstance(node.op, Collective):
                raise GraphError(
                    f"{node.op.name} {node.source} is in the body of a scan, where processes "
                    "cannot wait for each other; use it before or after the scan"
                )
    worlds = (n.op.world for n in traced.graph if isinstance(n.op, Collective))
    world = next((world for world in worlds if world.size > 1), None)
    if world is None:
        return None
    timeout = options["distributed.timeout"]
    lines = _lines(traced)
    facts = {
        "version": __version__,
        "device": device.partition(":")[0],  # they may have different GPUs
        "options": fingerprint_text(options, per_process=False),
        "graph": hashlib.sha256("\n".join(text for text, _ in lines).encode()).hexdigest(),
    }
    everyone = world.gather(facts, timeout)
    for rank, other in enumerate(everyone):
        for name in facts:
            if other[name] != everyone[0][name]:
                difference = f"{name} {other[name]}, and process 0 with {everyone[0][name]}"
                if name == "graph":
                    difference = _difference(world.gather(lines, timeout), rank)
                raise GraphError(f"process {rank} compiles with {difference}")
    for parameter in dict.fromkeys((*traced.graph.parameters, *traced.updates)):
        value = parameter.numpy() if world.rank == 0 else None
        parameter.assign(world.broadcast(value, timeout=timeout))
    return world


def tuning_exchange(
    world: World | None, backend: Backend, options: Mapping[str, Any]
) -> tuple[bool, Callable[[Any], Any]]:
    """Return whether another process measures for this one, and a function to exchange tables.

    The first process on each kind of machine measures for the others.  The function sends this
    process's tables, and returns the tables of the process that measures for it.
    """
    if world is None:
        return False, lambda tables: tables
    kind = dict(backend.environment(backend.tuning)), num_threads(options["num_threads"])
    timeout = options["distributed.timeout"]
    tuner = world.gather(kind, timeout).index(kind)
    # The tuner may wait a budget for other processes on its machine, and then compiles kernels.
    table_timeout = timeout + 2 * options["autotune.budget"] + COMPILE_TIMEOUT
    return tuner != world.rank, lambda tables: world.gather(tables, table_timeout)[tuner]


def agree_on_sizes(
    world: World,
    names: Sequence[str],
    sizes: Sequence[int],
    measures: bool,
    capacity: int,
    timeout: float,
) -> tuple[bool, int]:
    """Raise ShapeError in all processes unless they call with the same sizes.

    Return whether process 0 is to measure, and the number of functions that every process can keep.
    """
    values = np.array([*sizes, measures, capacity])
    everyone = world.gather_arrays(values, "the sizes of a call", timeout).tolist()
    first = everyone[0][:-2]
    for rank, (*other, _, _) in enumerate(everyone):
        if other != first:
            rows = (zip(names, row, strict=True) for row in (other, first))
            actual, expected = (", ".join(f"{name} {n}" for name, n in row) for row in rows)
            raise ShapeError(
                f"process {rank} calls with the sizes {actual}, process 0 with {expected}; give a "
                "step the same sizes in all processes"
            )
    return bool(everyone[0][-2]), min(row[-1] for row in everyone)


def _lines(traced: TracedGraph) -> list[tuple[str, str]]:
    """Return each node as text that is the same in all processes, and its source location."""
    graph = traced.graph
    number: dict[Node, int] = {}
    lines: list[tuple[str, str]] = []
    for node in graph:
        number[node] = len(lines)
        # FromSizes holds a function, whose text differs between processes.
        op = "size" if isinstance(node.op, FromSizes) else str(node.op)
        if isinstance(node.op, Constant):
            op += f" {hashlib.sha256(node.op.value.tobytes()).hexdigest()[:12]}"
        reads = " ".join(f"%{number[x]}" for x in node.inputs)
        specs = ", ".join(map(str, node.specs))
        lines.append((f"%{number[node]} = {op}({reads}): {specs}", str(node.source)))
    outputs = " ".join(f"%{number[y]}" for y in graph.outputs)
    names = ", ".join(p.name for p in traced.updates)
    return [*lines, (f"the outputs {outputs}, which update {names}", "")]


def _difference(everyone: Sequence[Sequence[tuple[str, str]]], rank: int) -> str:
    pairs = itertools.zip_longest(everyone[0], everyone[rank], fillvalue=("nothing more", ""))
    expected, actual = next(pair for pair in pairs if pair[0][0] != pair[1][0])
    return f"another graph: it has {' '.join(actual)}, and process 0 has {' '.join(expected)}"

"""What the processes of a world have to agree on before they run a step together.

They compile the same function, begin with the same parameters, choose the same algorithms, and call
with the same sizes.  A difference is an error in all of them, which says what differs: without it,
each would wait for another collective than the others.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.distributed import World
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import Constant, FromSizes, Graph, Node, Parameter, nested
from minigraph.ops.collective import Collective
from minigraph.options import common_text
from minigraph.version import __version__


def agreed(
    device: str, graph: Graph, updates: Sequence[Parameter], options: Mapping[str, Any]
) -> World | None:
    """Return the world of a function's collectives, once all its processes compile the same.

    Their parameters become those of process 0.  None if there is no other process.
    """
    world = _world_of(graph)
    if world:
        kind = device.partition(":")[0]  # they may have different GPUs
        _compile_alike(world, kind, graph, updates, options)
    return world


def _world_of(graph: Graph) -> World | None:
    """Return the world of collectives; GraphError for one in the body of a loop."""
    for body in [*nested(graph)][1:]:
        for node in body:
            if isinstance(node.op, Collective):
                raise GraphError(
                    f"{node.op.name} {node.source} is in the body of a scan, where processes "
                    "cannot wait for each other; use it before or after the scan"
                )
    worlds = {n.op.world: None for n in graph if isinstance(n.op, Collective)}
    return next((world for world in worlds if world.size > 1), None)


def _compile_alike(
    world: World,
    device: str,
    graph: Graph,
    updates: Sequence[Parameter],
    options: Mapping[str, Any],
) -> None:
    timeout = options["distributed.timeout"]
    lines = _lines(graph, updates)
    mine = {
        "version": __version__,
        "device": device,
        "options": common_text(options),
        "graph": hashlib.sha256("\n".join(text for text, _ in lines).encode()).hexdigest(),
    }
    given = world.gather(mine, timeout)
    for rank, theirs in enumerate(given):
        for name in mine:
            if theirs[name] != given[0][name]:
                what = f"{name} {theirs[name]}, and process 0 with {given[0][name]}"
                if name == "graph":
                    what = _difference(world.gather(lines, timeout), rank)
                raise GraphError(f"process {rank} compiles with {what}")
    for parameter in dict.fromkeys((*graph.parameters, *updates)):
        value = parameter.numpy() if world.rank == 0 else None
        parameter.assign(world.broadcast(value, timeout=timeout))


def call_alike(
    world: World, names: Sequence[str], sizes: Sequence[int], due: bool, room: int, timeout: float
) -> tuple[bool, int]:
    """Make sure that all processes call with the same sizes.

    Return what process 0 is due, and for how many functions all of them have room.
    """
    mine = np.array([*sizes, due, room])
    given = world.gather_arrays(mine, "the sizes of a call", timeout).tolist()
    for rank, (*theirs, _, _) in enumerate(given):
        if theirs != given[0][:-2]:
            their, first = (
                ", ".join(f"{name} {n}" for name, n in zip(names, row, strict=True))
                for row in (theirs, given[0][:-2])
            )
            raise ShapeError(
                f"process {rank} calls with the sizes {their}, process 0 with {first}; a step "
                "takes the same sizes in all processes"
            )
    return bool(given[0][-2]), min(row[-1] for row in given)


def _lines(graph: Graph, updates: Sequence[Parameter]) -> list[tuple[str, str]]:
    """Return each node in words that are the same in all processes, and where it was made."""
    number: dict[Node, int] = {}
    lines: list[tuple[str, str]] = []
    for node in graph:
        number[node] = len(lines)
        # How a size becomes an array is a function, which has no words; what reads it has.
        op = "size" if isinstance(node.op, FromSizes) else str(node.op)
        if isinstance(node.op, Constant):
            op += f" {hashlib.sha256(node.op.value.tobytes()).hexdigest()[:12]}"
        reads = " ".join(f"%{number[x]}" for x in node.inputs)
        specs = ", ".join(map(str, node.specs))
        lines.append((f"%{number[node]} = {op}({reads}): {specs}", str(node.source)))
    outputs = " ".join(f"%{number[y]}" for y in graph.outputs)
    names = ", ".join(p.name for p in updates)
    return [*lines, (f"the outputs {outputs}, which update {names}", "")]


def _difference(given: Sequence[Sequence[tuple[str, str]]], rank: int) -> str:
    """Return in words where the graph of a process first differs from that of process 0."""
    pairs = itertools.zip_longest(given[0], given[rank], fillvalue=("nothing more", ""))
    (first, there), (second, here) = next(pair for pair in pairs if pair[0][0] != pair[1][0])
    return f"another graph: it has {second} {here}, and process 0 {first} {there}"

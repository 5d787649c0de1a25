"""The record of a function, and its text in files.

Ids name nodes through all stages: a pass keeps the id of a node that computes the same after it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated

from msgspec import Meta, field
from msgspec.json import Decoder

from minigraph.arguments import shown
from minigraph.autotune.measurement import Measurement
from minigraph.platform.records import Record, decode, encode

LARGEST = 1 << 62
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Id = Annotated[int, Meta(ge=1, le=LARGEST)]
Seconds = Annotated[float, Meta(ge=0)]
FORMAT = 1


class NodeRecord(Record, frozen=True, omit_defaults=True):
    """A node, or a box of nodes: a kernel that computes several, or a loop.

    name     the op's, or that of an input or parameter
    kind     "op", "input", "parameter", "constant" or "box"
    text     the op with its attributes, where it has any
    results  their shapes and types
    reads    the ids of its inputs, in order
    line     the user's, as file:line
    layer    the path of the module, such as "layer1.0.conv1"
    role     "forward"; "backward", of a gradient; "update", of parameters' new values
    turn     the same for nodes that replace one another
    box      the id of the box that it is in, else 0
    """

    id: Id
    name: str
    kind: str
    results: tuple[str, ...]
    reads: tuple[Id, ...] = ()
    text: str = ""
    line: str = ""
    layer: str = ""
    role: str = "forward"
    turn: int = -1
    box: Count = 0


class Removed(Record, frozen=True, omit_defaults=True):
    """A node that is gone after a pass, and the ids of what computes its value there, if any."""

    id: Id
    became: tuple[Id, ...] = ()


class Rewired(Record, frozen=True):
    """A node that is the same after a pass, but reads other nodes, or is in another box."""

    id: Id
    reads: tuple[Id, ...]
    box: Count


class StopRecord(Record, frozen=True):
    """Two neighbours that a pass did not fuse: their ids, 0 where they are gone, and why."""

    producer: Count
    consumer: Count
    names: tuple[str, str]
    reason: str


class Stage(Record, frozen=True):
    """The graph after a pass, as what is different from the stage before.

    name    of the pass; "as written" for the first stage
    fired   how often each rewrite of the pass was applied
    nodes   how many there are, as the pass counts them
    """

    name: str
    nodes: Count
    seconds: Seconds = 0.0
    fired: dict[str, Count] = field(default_factory=dict)
    added: tuple[NodeRecord, ...] = ()
    removed: tuple[Removed, ...] = ()
    rewired: tuple[Rewired, ...] = ()
    stops: tuple[StopRecord, ...] = ()


class AlgorithmRecord(Record, frozen=True):
    """What was chosen for a convolution or product, and its rivals with their times.

    subject  what was measured, in words
    layouts  of the inputs, then of the result
    origin   "measured", "stored", "loaded file" or "heuristic"
    seconds  None if it was not measured
    """

    subject: str
    name: str
    layouts: tuple[str, ...]
    origin: str
    seconds: Seconds | None
    rivals: tuple[Measurement, ...]


class TextRecord(Record, frozen=True):
    """The text of a generated kernel."""

    name: str
    text: str


class StepRecord(Record, frozen=True, omit_defaults=True):
    """A kernel call, in the order in which they run.

    node       the id of what it computes
    name       of its op; "copy" where the program needed one
    kernel     the maker and the algorithm, as in "onednn jit:avx2"
    reads      the ids of the buffers that it reads
    writes     the ids of those that it writes
    bytes      that it reads and writes at least
    flops      operations of arithmetic
    bound      seconds that the device needs for these at least
    texts      the numbers of its texts
    algorithm  the number of its algorithm
    numpy      why NumPy computes it on a device that has kernels
    loop       the number of the step whose loop it is in
    """

    node: Count
    name: str
    kernel: str
    reads: tuple[Id, ...]
    writes: tuple[Id, ...]
    bytes: Count
    flops: Count
    bound: Seconds
    texts: tuple[Count, ...] = ()
    algorithm: Count | None = None
    numpy: str = ""
    loop: Count | None = None


class BufferRecord(Record, frozen=True, omit_defaults=True):
    """A piece of memory.

    home    "arena", "input", "output", "parameter" or "constant"
    node    the id of what it holds, 0 for what a step needs only while it runs
    offset  in the arena
    first   the number of the step that writes it
    last    the number of the last step that uses it
    heir    the id of the buffer that takes its memory over, else 0
    """

    id: Id
    home: str
    bytes: Count
    node: Count = 0
    offset: Count = 0
    first: Count = 0
    last: Count = 0
    heir: Count = 0


class Run(Record, frozen=True):
    """When a step, or a part of it, ran in a profiled call: seconds since the first began."""

    step: Count
    start: float
    seconds: Seconds


class Description(Record, frozen=True):
    """A compiled function.

    seconds     of compiling, by stage
    bandwidth   bytes a second that the device copies
    peak        operations a second of its matrix products
    arena       bytes of memory that intermediate results share
    unplanned   bytes that they would take if no memory were used twice
    stages      the graph as written, then after each pass
    steps       those of the program; those of a loop's body follow the loop
    runs        of the last call of `profile`; empty if there was none
    """

    title: str
    version: str
    device: str
    fingerprint: str
    options: dict[str, str | float | int | bool | None]
    seconds: dict[str, Seconds]
    bandwidth: float
    peak: float
    arena: Count
    unplanned: Count
    stages: tuple[Stage, ...]
    steps: tuple[StepRecord, ...]
    buffers: tuple[BufferRecord, ...]
    algorithms: tuple[AlgorithmRecord, ...]
    texts: tuple[TextRecord, ...]
    runs: tuple[Run, ...] = ()


class File(Record, frozen=True):
    """What a file of descriptions holds."""

    format: int
    functions: tuple[Description, ...]


FILE = Decoder(File)


def to_text(functions: tuple[Description, ...]) -> str:
    """Return descriptions as JSON."""
    return encode(File(FORMAT, functions))


def from_text(text: str | bytes) -> tuple[Description, ...]:
    """Return the descriptions in a JSON text; ValueError, which says why, if it holds none."""
    found = decode(FILE, text)
    if found.format != FORMAT:
        raise ValueError(f"is of format {shown(found.format)}; this version reads {FORMAT}")
    for function in found.functions:
        nodes = _check_stages(function.stages)
        _check_program(function, nodes)
    return found.functions


def _check_stages(stages: Sequence[Stage]) -> Container[int]:
    """Return the ids of the last stage's nodes; ValueError where stages do not fit together."""
    reads: dict[int, tuple[int, ...]] = {}
    boxes: dict[int, tuple[int, ...]] = {}
    for stage in stages:
        if not (stage.added or stage.removed or stage.rewired):
            continue
        _find("removed node", [gone.id for gone in stage.removed], reads)
        _tell_apart("removed node", [gone.id for gone in stage.removed])
        for gone in stage.removed:
            del reads[gone.id], boxes[gone.id]
        _find("rewired node", [node.id for node in stage.rewired], reads)
        _tell_apart("node", [*reads, *(node.id for node in stage.added)])
        changed: tuple[NodeRecord | Rewired, ...] = (*stage.added, *stage.rewired)
        for node in changed:
            reads[node.id] = node.reads
            boxes[node.id] = (node.box,) if node.box else ()
        named = (*reads.values(), *boxes.values(), *(gone.became for gone in stage.removed))
        _find("node", itertools.chain(*named), reads)
        try:
            TopologicalSorter(reads).prepare()
            TopologicalSorter(boxes).prepare()
        except CycleError:
            raise ValueError(f"is damaged: nodes go in a circle after {stage.name:.40}") from None
    return reads


def _check_program(d: Description, nodes: Container[int]) -> None:
    """Raise ValueError where a step, a buffer or a run names what there is not."""
    steps = range(len(d.steps))
    _tell_apart("buffer", [buffer.id for buffer in d.buffers])
    used = (x for step in d.steps for x in (*step.reads, *step.writes))
    heirs = {buffer.id: (buffer.heir,) if buffer.heir else () for buffer in d.buffers}
    _find("buffer", itertools.chain(used, *heirs.values()), heirs)
    computed = (*(step.node for step in d.steps), *(buffer.node for buffer in d.buffers))
    _find("node", filter(None, computed), nodes)
    _find("step", (run.step for run in d.runs), steps)
    _find("step", (step.loop for step in d.steps if step.loop is not None), steps)
    _find("text", (x for step in d.steps for x in step.texts), range(len(d.texts)))
    chosen = (step.algorithm for step in d.steps if step.algorithm is not None)
    _find("algorithm", chosen, range(len(d.algorithms)))


def _find(what: str, ids: Iterable[int], known: Container[int]) -> None:
    """Raise ValueError if one of the ids is not known."""
    for x in ids:
        if x not in known:
            raise ValueError(f"is damaged: there is no {what} {x}")


def _tell_apart(what: str, ids: Sequence[int]) -> None:
    if len(set(ids)) < len(ids):
        twice = next(x for x, times in Counter(ids).items() if times > 1)
        raise ValueError(f"is damaged: {what} {twice} is there twice")

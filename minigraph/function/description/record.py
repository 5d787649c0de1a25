"""The record of a function, and its text in files.

Ids name nodes through all stages: a pass keeps the id of a node that computes the same after it.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field
from msgspec.json import Decoder

from minigraph.autotune.measurement import Measurement
from minigraph.records import Record, decode, encode

Count = Annotated[int, Meta(ge=0)]
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

    id: int
    name: str
    kind: str
    results: tuple[str, ...]
    reads: tuple[int, ...] = ()
    text: str = ""
    line: str = ""
    layer: str = ""
    role: str = "forward"
    turn: int = -1
    box: int = 0


class Removed(Record, frozen=True, omit_defaults=True):
    """A node that is gone after a pass, and the ids of what computes its value there, if any."""

    id: int
    became: tuple[int, ...] = ()


class Rewired(Record, frozen=True):
    """A node that is the same after a pass, but reads other nodes, or is in another box."""

    id: int
    reads: tuple[int, ...]
    box: int


class StopRecord(Record, frozen=True):
    """Two neighbours that a pass did not fuse: their ids, 0 where they are gone, and why."""

    producer: int
    consumer: int
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

    node: int
    name: str
    kernel: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    bytes: Count
    flops: Count
    bound: Seconds
    texts: tuple[int, ...] = ()
    algorithm: int | None = None
    numpy: str = ""
    loop: int | None = None


class BufferRecord(Record, frozen=True, omit_defaults=True):
    """A piece of memory.

    home    "arena", "input", "output", "parameter" or "constant"
    node    the id of what it holds, 0 for what a step needs only while it runs
    offset  in the arena
    first   the number of the step that writes it
    last    the number of the last step that uses it
    heir    the id of the buffer that takes its memory over, else 0
    """

    id: int
    home: str
    bytes: Count
    node: int = 0
    offset: Count = 0
    first: Count = 0
    last: Count = 0
    heir: int = 0


class Run(Record, frozen=True):
    """When a step, or a part of it, ran in a profiled call: seconds since the first began."""

    step: int
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
    options: dict[str, Any]
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
        raise ValueError(f"is of format {found.format}; this version reads {FORMAT}")
    return found.functions

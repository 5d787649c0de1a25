"""The record of a compiled function, and its text in files.

Reports, pages, pictures and comparisons use only this record.  Ids name nodes through all stages:
a node that a pass does not change keeps its id.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field
from msgspec.json import Decoder

from minigraph.arguments import first_names, short_repr
from minigraph.autotune.measurement import Measurement
from minigraph.inspect.roofline import Cost, Speeds, costs
from minigraph.passes.notes import MissedFusion, PassRecord
from minigraph.platform.records import Record, decode, encode
from minigraph.program import Traffic

MAX_INTEGER = 1 << 62
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Id = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Seconds = Annotated[float, Meta(ge=0)]
FORMAT = 3

# ---------------------------------------------------------------- execution


class MemoryUse(Record, frozen=True):
    """Memory in bytes.  `unplanned_bytes` would be the arena's size without reuse of memory.

    largest  the largest intermediate results: description and bytes
    """

    peak_bytes: Count
    arena_bytes: Count
    parameter_bytes: Count
    unplanned_bytes: Count
    largest: list[tuple[str, int]] = field(default_factory=list)


class Algorithm(Record, frozen=True):
    """The algorithm of a convolution or product, and the other candidates.

    result      spec of the result
    line        the user's
    subject     description of the problem
    name        of the algorithm
    layout      of each input, then of the result
    seconds     measured; None without a measurement
    workspace   bytes; None without a measurement
    origin      "measured" now, "measured by another process", "stored", "loaded file", "predicted"
                by the cost model, or "heuristic"
    candidates  all measurements, in every layout, without those that are only predicted
    layer       of the op; outside of layers, its line
    """

    op: str
    result: str
    line: str
    subject: str
    name: str
    layout: str
    seconds: Seconds | None
    workspace: Count | None
    origin: str
    candidates: list[Measurement]
    layer: str = ""

    def __str__(self) -> str:
        seconds = "" if self.seconds is None else f", {self.seconds * 1e3:.2f} ms"
        origin = self.origin + (f" of {len(self.candidates)}" if self.candidates else "")
        return f"{self.op} {self.result}: {self.name} in {self.layout} ({origin}{seconds})"

    __repr__ = __str__


class GeneratedKernel(Record, frozen=True):
    """A kernel that was generated for an op, or for a group of ops.

    name     of the function in the source; equal kernels have equal names
    ops      names of the ops
    inputs   number of arrays that it reads
    outputs  number of arrays that it writes
    bytes    minimum that it reads and writes
    source   its text
    lines    of the user's code that made the ops
    layers   of the ops; of ops outside of layers, their lines
    """

    name: str
    ops: list[str]
    inputs: Count
    outputs: Count
    bytes: Count
    source: str
    lines: list[str]
    layers: list[str] = field(default_factory=list)

    @property
    def contents(self) -> str:
        """A line with the kernel's ops, which is the same for equal kernels."""
        return f"{first_names(self.ops, 12)}; {self.inputs} in, {self.outputs} out ({self.name})"

    def __str__(self) -> str:
        return f"{first_names(self.layers)}: {self.contents}"

    __repr__ = __str__


class StepRecord(Record, frozen=True, omit_defaults=True):
    """A kernel call; steps are in execution order.

    name       of the op; "copy" for a copy that lowering inserted
    kernel     maker and algorithm, such as "onednn jit:avx2"
    results    shapes and dtypes
    line       the user's, with the layer
    layer      path of the module, such as "layer1.0.conv1"; outside of modules, file:line
    backward   whether the step belongs to a gradient
    reads      ids of the buffers that it reads
    writes     ids of the buffers that it writes
    bytes      minimum that it reads and writes
    flops      arithmetic operations
    node       id of its node; 0 if stages are not described
    algorithm  number of its algorithm
    generated  number of its generated kernel
    numpy      the op, and why NumPy computes it on a device that has kernels
    loop       number of the step whose loop contains it
    fusible    whether a generated kernel could fuse it with its neighbours
    """

    name: str
    kernel: str
    results: tuple[str, ...]
    line: str
    layer: str
    reads: tuple[Id, ...]
    writes: tuple[Id, ...]
    bytes: Count
    flops: Count
    backward: bool = False
    node: Count = 0
    algorithm: Count | None = None
    generated: Count | None = None
    numpy: str = ""
    loop: Count | None = None
    fusible: bool = False

    @property
    def maker(self) -> str:
        return self.kernel.partition(" ")[0]

    @property
    def result(self) -> str:
        return ", ".join(self.results)


class BufferRecord(Record, frozen=True, omit_defaults=True):
    """A buffer.

    space      "arena", "input", "output", "parameter" or "constant"
    name       of the input or parameter in it
    node       id of the node in it; 0 for a step's scratch memory
    offset     in the arena
    first      number of the step that writes it
    last       number of the last step that uses it
    successor  id of the buffer that takes over its memory in place, else 0
    """

    id: Id
    space: str
    bytes: Count
    name: str = ""
    node: Count = 0
    offset: Count = 0
    first: Count = 0
    last: Count = 0
    successor: Count = 0


class Run(Record, frozen=True):
    """The run of a step, or of a part of it, in a profiled call: seconds from the call's start."""

    step: Count
    start: float
    seconds: Seconds


class KernelTime(Record, frozen=True):
    """One kernel of a call.

    name     of the op
    kernel   maker and algorithm
    result   shapes and dtypes
    line     the user's
    start    seconds, if all kernels took their median times without gaps
    seconds  median over the calls
    layer    of the op; outside of layers, its line
    bytes    minimum that it reads and writes
    flops    of a convolution or product; else one for each element of an op's result
    threads  maximum number that share the work
    memory   bytes of the arena in use while it runs
    """

    name: str
    kernel: str
    result: str
    line: str
    start: float
    seconds: float
    layer: str = ""
    bytes: int = 0
    flops: int = 0
    threads: int = 1
    memory: int = 0


def layer_path(layer: str) -> list[str]:
    """Return the names from the outermost layer to a layer; outside of layers, the line."""
    return [layer] if ":" in layer else layer.split(".")


# ---------------------------------------------------------------- passes


class VertexRecord(Record, frozen=True, omit_defaults=True):
    """A vertex of a graph: a node, or a box of nodes, which is a fused kernel or a loop.

    name     of the op, input or parameter
    kind     "op", "input", "parameter", "constant" or "box"
    text     the op with its attributes, if it has any
    results  shapes and dtypes
    reads    ids of its inputs, in order
    line     the user's, as file:line
    layer    path of the module, such as "layer1.0.conv1"
    role     "forward"; "backward", of a gradient; "update", of parameters' new values
    order    the same for nodes that replace one another
    box      id of the box around it, else 0
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
    order: int = -1
    box: Count = 0


class Removed(Record, frozen=True, omit_defaults=True):
    """A node that a pass removed, and the ids of its replacements, if any."""

    id: Id
    became: tuple[Id, ...] = ()


class Rewired(Record, frozen=True):
    """A node that a pass keeps, with other inputs or in another box."""

    id: Id
    reads: tuple[Id, ...]
    box: Count


class Stage(Record, frozen=True):
    """The graph after a pass, as differences from the stage before.

    stops  for each of the pass's `stops`, the ids of the two neighbours; 0 for removed ones
    """

    added: tuple[VertexRecord, ...] = ()
    removed: tuple[Removed, ...] = ()
    rewired: tuple[Rewired, ...] = ()
    stops: tuple[tuple[Count, Count], ...] = ()


class Description(Record, frozen=True):
    """A compiled function; `Report` documents the fields that both have.

    steps       of the program; the steps of a loop's body follow the loop
    algorithms  of convolutions and products, in the order of their steps
    kernels     generated ones, in the order of their steps; in a report's record, of fused ops
    runs        of the last call of `profile`; empty without one
    stages      the graph as written, then after each pass; empty in a report's record, because they
                need another run of the passes
    speeds      of the device; None in a report's record, because they must be measured
    """

    title: str
    version: str
    device: str
    fingerprint: str
    options: dict[str, str | float | int | bool | None]
    ineffective: dict[str, str]
    ops: dict[str, Count]
    seconds: dict[str, Seconds]
    launches: Count
    syncs: Count
    memory: MemoryUse
    passes: tuple[PassRecord, ...]
    steps: tuple[StepRecord, ...]
    buffers: tuple[BufferRecord, ...]
    algorithms: tuple[Algorithm, ...]
    kernels: tuple[GeneratedKernel, ...]
    traffic: tuple[Traffic, ...]
    runs: tuple[Run, ...] = ()
    stages: tuple[Stage, ...] = ()
    speeds: Speeds | None = None

    @property
    def stops(self) -> list[MissedFusion]:
        return [stop for record in self.passes for stop in record.stops]

    @property
    def layers(self) -> list[Cost]:
        """The cost of a call by layer, or by line of the program outside of layers."""
        seconds: dict[int, float] = {}
        for run in self.runs:
            seconds[run.step] = seconds.get(run.step, 0.0) + run.seconds
        steps = [(i, step) for i, step in enumerate(self.steps) if step.loop is None]
        return costs((step.layer, step, seconds.get(i)) for i, step in steps)


class DescriptionFile(Record, frozen=True):
    """The contents of a file of descriptions."""

    format: int
    functions: tuple[Description, ...]


FILE_DECODER = Decoder(DescriptionFile)


def to_text(functions: tuple[Description, ...]) -> str:
    return encode(DescriptionFile(FORMAT, functions))


def from_text(text: str | bytes) -> tuple[Description, ...]:
    """Return the descriptions in a JSON text; raise ValueError, which says why, without them."""
    file = decode(FILE_DECODER, text)
    if file.format != FORMAT:
        raise ValueError(f"is of format {short_repr(file.format)}; this version reads {FORMAT}")
    for function in file.functions:
        if any(run.step >= len(function.steps) for run in function.runs):
            raise ValueError("is damaged: it has times of steps that do not exist")
    return file.functions

"""A program: a flat list of steps on fixed buffers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np

from minigraph.autotune.candidate import Problem
from minigraph.autotune.measurement import Measurement
from minigraph.errors import GraphError
from minigraph.graph import ALIGNMENT, Array, Graph, Node, Parameter, Shape, Spec
from minigraph.jit.source import KernelSource
from minigraph.passes.notes import PassRecord


class MemorySpace(Enum):
    """Whose memory a buffer is."""

    ARENA = "arena"
    INPUT = "input"
    OUTPUT = "output"
    PARAMETER = "parameter"
    CONSTANT = "constant"


@dataclass(eq=False)
class Buffer:
    """A piece of contiguous memory.  In the arena it lives from step `first` to step `last`.

    successor  the buffer that takes its memory over at step `last`
    """

    space: MemorySpace
    nbytes: int
    node: Node | None = None  # the input, parameter or constant that it holds
    first: int = 0
    last: int = 0
    offset: int = 0
    successor: Buffer | None = None

    def __str__(self) -> str:
        if self.space is MemorySpace.ARENA:
            return f"arena[{self.offset}:{self.offset + self.nbytes}]"
        name = f" {self.node.name}" if self.node is not None else ""
        return f"{self.space.value}{name}"


@dataclass(frozen=True, eq=False)
class View:
    """An array in a buffer."""

    buffer: Buffer
    spec: Spec
    offset: int  # bytes
    strides: Shape  # bytes

    @property
    def contiguous(self) -> bool:
        return self.strides == self.spec.strides or self.spec.size <= 1

    @property
    def lead(self) -> int:
        """Bytes between the lowest element and the first one: steps may be negative."""
        sizes = zip(self.spec.shape, self.strides, strict=True)
        return sum(-s * (n - 1) for n, s in sizes if s < 0)

    @property
    def extent(self) -> int:
        """Bytes between the ends."""
        sizes = zip(self.spec.shape, self.strides, strict=True)
        return sum(abs(s) * (n - 1) for n, s in sizes) + self.spec.dtype.itemsize

    def array(self, memory: Array) -> Array:
        """Return the NumPy array in `memory`, the bytes of the buffer."""
        return np.ndarray(self.spec.shape, self.spec.dtype, memory, self.offset, self.strides)


class Traffic(NamedTuple):
    """What a collective of several processes has sent, in all calls but the first.

    The first call is left out because it waits for processes that come late to it.

    what     op and gradients, in words
    bytes    that a process gives at a time
    times    how often
    pending    seconds between when it was begun and when it was there
    waited   seconds of these in which the process did nothing else
    """

    what: str
    bytes: int
    times: int
    pending: float
    waited: float


class Kernel:
    """One way to compute the results of one node; subclasses change the defaults.

    maker       whose it is: "numpy", "c", "onednn", "mpi", "cuda", "cublas", "cudnn" or "nccl"
    algorithm   what `maker` calls it, such as "jit:avx2"; empty if it has but one
    scratch     bytes of memory that it needs while it runs
    strided     for each input whether it may be a view that is not contiguous; empty: none may
    inplace     for each input which outputs may overwrite it; empty: none may
    refuses     whether the values of its inputs may not fit, such as a label out of range
    why_numpy   why NumPy computes it on a device that has kernels; empty if it does not
    alignment   bytes, at a multiple of which its inputs have to begin in their buffers
    sources     what was generated for it
    body        of a loop: the program of one step
    threads     of the processor that may share its work
    rescue      goes on where a native call of it gave up; None: NumPy does the step anew
    """

    maker: str
    algorithm: str = ""
    scratch: int = 0
    strided: Sequence[bool] = ()
    inplace: Sequence[Sequence[int]] = ()
    refuses: bool = False
    why_numpy: str = ""
    alignment: int = 1
    sources: Sequence[KernelSource] = ()
    body: Program | None = None
    threads: int = 1
    rescue: Kernel | None = None

    @property
    def texts(self) -> Sequence[KernelSource]:
        """What has to be compiled for it."""
        return self.sources

    @property
    def traffic(self) -> Traffic | None:
        """What it has sent to other processes; None if that is not its work."""
        return None

    @property
    def prepared_bytes(self) -> int:
        """What it keeps beside the arena of its inputs that are constants, as it reads them."""
        return 0

    @property
    def name(self) -> str:
        """What reports call it: "onednn jit:avx2"."""
        return f"{self.maker} {self.algorithm}".strip()

    def reads_strided(self, i: int) -> bool:
        """Return whether input `i` may be a view that is not contiguous."""
        return bool(self.strided) and self.strided[i]

    def may_overwrite(self, i: int) -> Sequence[int]:
        """Return the outputs that may be written where input `i` is read."""
        return self.inplace[i] if self.inplace else ()

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Compute `outputs`, which are contiguous, from `inputs`, called from Python.

        Raises GraphError if the values of the inputs do not fit, such as a label out of range, and
        KernelFailed if the kernel cannot run.
        """
        raise NotImplementedError(f"{self.name} is not called from Python")


@dataclass(frozen=True, eq=False)
class Choice:
    """Why a node has its kernel: the decision among the candidates of a problem.

    problem      that the node is
    layouts      of the node's inputs, then of its result, by name
    kernel       that was chosen; None where no candidate can be used
    measurement  of its candidate; None where it was the library's own first choice
    origin       of the measurement: "measured" now, "stored" or "loaded file"; else "heuristic"
    rivals       all measurements of the problem, in every layout
    """

    problem: Problem
    layouts: tuple[str, ...]
    kernel: Kernel | None
    measurement: Measurement | None
    origin: str
    rivals: Sequence[Measurement]


class KernelFailed(GraphError):
    """A kernel that could not run, whatever its inputs are."""


@dataclass(frozen=True, eq=False)
class Step:
    """A kernel with its operands.

    scratch  memory of the arena that only this step uses
    choice   why this kernel, where there was a choice
    """

    node: Node
    kernel: Kernel
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    scratch: Buffer
    choice: Choice | None = None

    @property
    def measured(self) -> bool:
        """Whether its kernel was chosen because of a measurement: another one may replace it."""
        return self.choice is not None and self.choice.measurement is not None

    @functools.cached_property
    def reads(self) -> Mapping[Buffer, Sequence[int]]:
        """By buffer, which inputs show it."""
        return _by_buffer(self.inputs)

    @functools.cached_property
    def writes(self) -> Mapping[Buffer, Sequence[int]]:
        """By buffer, which outputs show it."""
        return _by_buffer(self.outputs)


def _by_buffer(views: Sequence[View]) -> dict[Buffer, list[int]]:
    places: dict[Buffer, list[int]] = {}
    for i, view in enumerate(views):
        places.setdefault(view.buffer, []).append(i)
    return places


@dataclass(eq=False)
class Program:
    """What a compiled function executes.

    outputs  views of OUTPUT buffers, or of buffers that have to be copied for the caller
    updates  after the last step, each view is copied to its parameter; others are made in place
    recomputed  what was done to keep within a limit of memory
    """

    graph: Graph
    steps: list[Step] = field(default_factory=list)
    outputs: list[View] = field(default_factory=list)
    updates: list[tuple[Parameter, View]] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    arena_bytes: int = 0
    recomputed: PassRecord | None = None

    def __str__(self) -> str:
        """The steps, a line each: outputs, op, inputs and kernel."""
        lines = []
        for step in self.steps:
            both = step.outputs, step.inputs
            outputs, inputs = (", ".join(str(view.buffer) for view in views) for views in both)
            lines.append(f"{outputs} = {step.node.op.name}({inputs}) by {step.kernel.name}")
        lines += [f"parameter {p.name} = {view.buffer} at the end" for p, view in self.updates]
        return "\n".join([*lines, f"arena of {self.arena_bytes} bytes"])

    @functools.cached_property
    def inputs(self) -> list[Buffer]:
        """The buffers of the inputs that are used."""
        return [b for b in self.buffers if b.space is MemorySpace.INPUT]

    @functools.cached_property
    def parameters(self) -> list[Parameter]:
        """The parameters that are read or changed."""
        held = [b.node for b in self.buffers if b.space is MemorySpace.PARAMETER]
        return [*dict.fromkeys(p for p in held if isinstance(p, Parameter))]

    @functools.cached_property
    def changed(self) -> set[Parameter]:
        """The parameters that are changed, in place or after the last step."""
        written = {v.buffer.node for s in self.steps for v in s.outputs}
        return {p for p in self.parameters if p in written} | {p for p, _ in self.updates}

    @functools.cached_property
    def returned(self) -> list[Buffer]:
        """The buffers that the caller gets."""
        return [b for b in self.buffers if b.space is MemorySpace.OUTPUT]

    @functools.cached_property
    def external(self) -> list[Buffer]:
        """The buffers that lie elsewhere at each call: of inputs, and of what is returned."""
        return [*self.inputs, *self.returned]

    def all_steps(self) -> Iterator[Step]:
        """Yield the steps, each of a loop followed by those of its body."""
        for step in self.steps:
            yield step
            if step.kernel.body:
                yield from step.kernel.body.all_steps()

    @property
    def unplanned_bytes(self) -> int:
        """What the arena would take if no memory were used twice."""
        return sum(round_up(b.nbytes) for b in self.buffers if b.space is MemorySpace.ARENA)


class Timing(NamedTuple):
    """When a step, or a part of it, began (seconds of `time.perf_counter`) and how long it took."""

    step: Step
    start: float
    seconds: float


def round_up(nbytes: int) -> int:
    """Return the bytes that a buffer takes in the arena."""
    return math.ceil(nbytes / ALIGNMENT) * ALIGNMENT


Memory = Mapping[Buffer, Array]  # the bytes of each buffer

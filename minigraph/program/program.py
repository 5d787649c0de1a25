"""A program: a flat list of steps on fixed buffers.  And what a device must offer to run it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np

from minigraph.autotune.candidate import Problem
from minigraph.autotune.choice import Algorithm
from minigraph.cache import Entry
from minigraph.errors import GraphError
from minigraph.graph import Array, Graph, Node, Parameter, Shape, Spec
from minigraph.passes.kernels.gathering import Gathering

NUMPY = "numpy"  # the algorithm that is always there
ALIGNMENT = 64  # bytes: a cache line, and the widest vector


class Home(Enum):
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

    home: Home
    nbytes: int
    node: Node | None = None  # the input, parameter or constant that it holds
    first: int = 0
    last: int = 0
    offset: int = 0
    successor: Buffer | None = None


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

    def array(self, memory: Array) -> Array:
        """Return the NumPy array in `memory`, the bytes of the buffer."""
        return np.ndarray(self.spec.shape, self.spec.dtype, memory, self.offset, self.strides)


class Kernel(Protocol):
    """One way to compute the results of one node.

    name       what computes it, for reports: "numpy", "c", "onednn jit:avx2", ...
    scratch    bytes of memory that it needs while it runs
    strided    which of its inputs may be views that are not contiguous
    inplace    for each input which outputs may overwrite it
    refuses    whether the values of its inputs may not fit, such as a label out of range
    alignment  bytes, at a multiple of which its inputs have to begin in their buffers
    """

    name: str
    scratch: int
    strided: Sequence[bool]
    inplace: Sequence[Sequence[int]]
    refuses: bool
    alignment: int

    @property
    def sources(self) -> Sequence[tuple[str, str]]:
        """Name and text of what was generated for it."""

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Compute `outputs`, which are contiguous, from `inputs`.

        Raises GraphError if the values of the inputs do not fit, such as a label out of range.
        """


Memory = Mapping["Buffer", Array]  # the bytes of each buffer


class Tunable(NamedTuple):
    """What may be measured for a node, and how its inputs and results lie.

    Without layouts there is nothing to choose for the node itself: all its candidates differ in
    those.
    """

    problem: Problem
    layouts: tuple[str, ...]


class KernelFailed(GraphError):
    """A kernel that could not run, whatever its inputs are."""


class Executor(Protocol):
    """A program with memory on a device."""

    @property
    def launches(self) -> int:
        """Native calls from Python per call."""

    @property
    def syncs(self) -> int:
        """How often a call waits for the device before its results are asked for."""

    @property
    def failures(self) -> dict[Step, str]:
        """Steps whose kernels have failed, and why; NumPy has done their work."""

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Run all steps and return the outputs, which belong to the caller.

        `inputs` are the arrays for the program's `inputs`.  Raises GraphError, before a parameter
        has changed, if the values of an input do not fit.
        """

    def profile(self, inputs: Sequence[Array]) -> tuple[list[Array], list[Timing]]:
        """Run all steps one by one; return the outputs, and when each began and how long it took.

        The outputs are those of a call.
        """


class Backend(Protocol):
    """A device: what computes there, and with which settings it was opened."""

    device: str
    versions: Mapping[str, str]  # of the libraries that it uses
    why_no_jit: str  # why kernels cannot be generated; empty if they can
    tuning: str  # the kind of cache entries that measurements of its algorithms are
    channels_last: bool  # whether normalisations are fast with the channels last
    gathering: Gathering  # which updates are small here

    @property
    def block(self) -> int:
        """Channels that lie side by side in its blocked layout of images; 1 if it has none."""

    def tunable(self, node: Node, strides: Sequence[Shape]) -> Tunable | None:
        """Return what may be measured for `node`; None if there is nothing to choose."""

    def kernel(self, node: Node, strides: Sequence[Shape], algorithm: str = "") -> Kernel:
        """Return the kernel for `node`, whose inputs have these strides in bytes.

        algorithm  the name of a measured candidate, or NUMPY; without one the device decides
        """

    def array(self, value: Any) -> Array | None:
        """Return a value that is in the memory of the device already, as its array; else None."""

    def bind(self, program: Program) -> Executor:
        """Return the program with memory of its own, ready to run."""

    def run_alone(self, step: Step, memory: Memory) -> None:
        """Run one step as a program would, on arrays in the memory of the host."""

    def environment(self, kind: str) -> Mapping[str, str]:
        """Return where cache entries of a kind hold, by name; empty if it has no use for them."""

    def kernels(self, program: Program) -> list[Entry]:
        """Return the entries of the generated kernels of a program."""

    def keep_kernels(self, entry: Entry) -> str:
        """Keep kernels that were generated elsewhere; return why not, or an empty string."""


@dataclass(frozen=True, eq=False)
class Step:
    """A kernel with its operands.

    scratch    memory of the arena that only this step uses
    algorithm  what was chosen for it, where there was a choice
    """

    node: Node
    kernel: Kernel
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    scratch: Buffer
    algorithm: Algorithm | None = None


class Timing(NamedTuple):
    """When a step, or a part of it, began (seconds of `time.perf_counter`) and how long it took."""

    step: Step
    start: float
    seconds: float


@dataclass(eq=False)
class Program:
    """What a compiled function executes.

    outputs  views of OUTPUT buffers, or of buffers that have to be copied for the caller
    updates  after the last step, each view is copied to its parameter; others are made in place
    """

    graph: Graph
    steps: list[Step] = field(default_factory=list)
    outputs: list[View] = field(default_factory=list)
    updates: list[tuple[Parameter, View]] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    arena_bytes: int = 0

    @functools.cached_property
    def inputs(self) -> list[Buffer]:
        """The buffers of the inputs that are used."""
        return [b for b in self.buffers if b.home is Home.INPUT]

    @functools.cached_property
    def parameters(self) -> list[Parameter]:
        """The parameters that are read or changed."""
        held = [b.node for b in self.buffers if b.home is Home.PARAMETER]
        return [*dict.fromkeys(p for p in held if isinstance(p, Parameter))]

    @functools.cached_property
    def changed(self) -> set[Parameter]:
        """The parameters that are changed, in place or after the last step."""
        written = {v.buffer.node for s in self.steps for v in s.outputs}
        return {p for p in self.parameters if p in written} | {p for p, _ in self.updates}

    @functools.cached_property
    def returned(self) -> list[Buffer]:
        """The buffers that the caller gets."""
        return [b for b in self.buffers if b.home is Home.OUTPUT]

    @property
    def unplanned_bytes(self) -> int:
        """What the arena would take if no memory were used twice."""
        return sum(round_up(b.nbytes) for b in self.buffers if b.home is Home.ARENA)


def round_up(nbytes: int) -> int:
    """Return the bytes that a buffer takes in the arena."""
    return math.ceil(nbytes / ALIGNMENT) * ALIGNMENT

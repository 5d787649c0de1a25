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
    """The memory that a buffer belongs to."""

    ARENA = "arena"
    INPUT = "input"
    OUTPUT = "output"
    PARAMETER = "parameter"
    CONSTANT = "constant"


@dataclass(eq=False)
class Buffer:
    """Contiguous memory; in the arena it lives from step `first` to step `last`.

    node       the input, parameter or constant in the buffer
    successor  the buffer that takes over the memory at step `last`
    """

    space: MemorySpace
    nbytes: int
    node: Node | None = None
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
        """Bytes from the element at the lowest address to the first: strides may be negative."""
        sizes = zip(self.spec.shape, self.strides, strict=True)
        return sum(-s * (n - 1) for n, s in sizes if s < 0)

    @property
    def extent(self) -> int:
        """Bytes from the lowest address to the end of the element at the highest."""
        sizes = zip(self.spec.shape, self.strides, strict=True)
        return sum(abs(s) * (n - 1) for n, s in sizes) + self.spec.dtype.itemsize

    def array(self, memory: Array) -> Array:
        """Return the NumPy array in `memory`, the bytes of the buffer."""
        return np.ndarray(self.spec.shape, self.spec.dtype, memory, self.offset, self.strides)


class Traffic(NamedTuple):
    """The communication of a collective in all calls but the first, which waits for late processes.

    what     name of the op and the gradients
    bytes    bytes that a process sends in a call
    times    number of calls
    pending  seconds from the start of the collective to its end
    waited   seconds of these during which the process was idle
    """

    what: str
    bytes: int
    times: int
    pending: float
    waited: float


class Kernel:
    """A kernel that computes the results of one node; subclasses override the defaults.

    maker            "numpy", "c", "onednn", "mpi", "cuda", "cublas", "cudnn" or "nccl"
    algorithm        the maker's name for it, such as "jit:avx2"; "" if the maker has only one
    scratch          bytes of memory that the kernel uses while it runs
    strided          for each input, whether it may be a view that is not contiguous; () if none may
    inplace          for each input, the outputs that may overwrite it; () if none may
    validates_input  whether it may raise for values of its inputs, such as a label out of range
    why_numpy        why NumPy computes the node on a device with kernels; "" if it does not
    alignment        bytes to which the offsets of its inputs must be aligned
    sources          generated sources
    body             program of one step of a loop
    threads          number of threads that share the work
    fallback         kernel that continues after a failed native call; None: NumPy repeats the step
    """

    maker: str
    algorithm: str = ""
    scratch: int = 0
    strided: Sequence[bool] = ()
    inplace: Sequence[Sequence[int]] = ()
    validates_input: bool = False
    why_numpy: str = ""
    alignment: int = 1
    sources: Sequence[KernelSource] = ()
    body: Program | None = None
    threads: int = 1
    fallback: Kernel | None = None

    @property
    def texts(self) -> Sequence[KernelSource]:
        """The sources to compile for the kernel."""
        return self.sources

    @property
    def traffic(self) -> Traffic | None:
        """The communication with other processes; None if the kernel has none."""
        return None

    @property
    def prepared_bytes(self) -> int:
        """Bytes outside of the arena for constant inputs in the kernel's own layout."""
        return 0

    @property
    def name(self) -> str:
        """Maker and algorithm, such as "onednn jit:avx2", or "numpy" if NumPy replaces both."""
        return "numpy" if self.why_numpy else f"{self.maker} {self.algorithm}".strip()

    def reads_strided(self, i: int) -> bool:
        """Return whether input `i` may be a view that is not contiguous."""
        return bool(self.strided) and self.strided[i]

    def may_overwrite(self, i: int) -> Sequence[int]:
        """Return the outputs that may be written over input `i`."""
        return self.inplace[i] if self.inplace else ()

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Compute the contiguous `outputs` from `inputs`.

        Raises GraphError for invalid values of inputs, such as a label out of range, and
        KernelFailed if the kernel cannot run.
        """
        raise NotImplementedError(f"{self.name} is not called from Python")


@dataclass(frozen=True, eq=False)
class Choice:
    """The choice of a node's kernel among the candidates of its problem.

    layouts           names of the layouts of the node's inputs and result
    kernel            the chosen one; None if no candidate can be used
    measurement       of the chosen candidate; None if a heuristic chose
    origin            of the measurement, such as "measured" or "stored"; without one, "heuristic"
                      or "predicted"
    all_measurements  measurements of the problem in every layout that have a time or an error
    """

    problem: Problem
    layouts: tuple[str, ...]
    kernel: Kernel | None
    measurement: Measurement | None
    origin: str
    all_measurements: Sequence[Measurement]


class KernelFailed(GraphError):
    """A kernel cannot run, for any input."""


@dataclass(frozen=True, eq=False)
class Step:
    """A kernel with its operands.

    scratch  buffer in the arena that only this step uses
    choice   of the kernel; None if the node has no candidates
    """

    node: Node
    kernel: Kernel
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    scratch: Buffer
    choice: Choice | None = None

    @property
    def measured(self) -> bool:
        """Whether a measurement chose the kernel, so that a failure can choose another one."""
        return self.choice is not None and self.choice.measurement is not None

    @functools.cached_property
    def changes_parameters(self) -> bool:
        return any(view.buffer.space is MemorySpace.PARAMETER for view in self.outputs)

    @functools.cached_property
    def reads(self) -> Mapping[Buffer, Sequence[int]]:
        """The indices of the inputs that are views of each buffer."""
        return _by_buffer(self.inputs)

    @functools.cached_property
    def writes(self) -> Mapping[Buffer, Sequence[int]]:
        """The indices of the outputs that are views of each buffer."""
        return _by_buffer(self.outputs)


def _by_buffer(views: Sequence[View]) -> dict[Buffer, list[int]]:
    indices: dict[Buffer, list[int]] = {}
    for i, view in enumerate(views):
        indices.setdefault(view.buffer, []).append(i)
    return indices


@dataclass(eq=False)
class Program:
    """The steps and buffers of a compiled function.

    outputs     views of OUTPUT buffers, or of buffers that each call copies for the caller
    updates     views that are copied to their parameters after the last step; other updates are in
                place
    recomputed  the record of recomputation, if a memory limit required it
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
            operands = step.outputs, step.inputs
            outputs, inputs = (", ".join(str(view.buffer) for view in views) for views in operands)
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
        nodes = [b.node for b in self.buffers if b.space is MemorySpace.PARAMETER]
        return [*dict.fromkeys(p for p in nodes if isinstance(p, Parameter))]

    @functools.cached_property
    def changed(self) -> set[Parameter]:
        """The parameters that are changed, in place or after the last step."""
        output_nodes = {v.buffer.node for s in self.steps for v in s.outputs}
        return {p for p in self.parameters if p in output_nodes} | {p for p, _ in self.updates}

    @functools.cached_property
    def returned(self) -> list[Buffer]:
        """The buffers of results."""
        return [b for b in self.buffers if b.space is MemorySpace.OUTPUT]

    @property
    def checks(self) -> list[Step]:
        """The steps that may raise an error for a value that no earlier step has checked.

        A gradient's step has the same indices as the step of the forward pass.  A step in NumPy
        counts in any case, as a signal may end it, too.
        """
        checks: dict[object, Step] = {}
        for step in self.steps:
            if step.kernel.validates_input:
                key: object = step
                range = step.node.op.index_range(*step.node.inputs)
                if range and step.kernel.maker != "numpy":
                    view = step.inputs[range.operand]
                    key = view.buffer, view.offset, view.spec, view.strides, range
                checks.setdefault(key, step)
        return [*checks.values()]

    @functools.cached_property
    def external(self) -> list[Buffer]:
        """The buffers whose addresses change with each call: inputs and results."""
        return [*self.inputs, *self.returned]

    def all_steps(self) -> Iterator[Step]:
        """Yield the steps, each loop followed by the steps of its body."""
        for step in self.steps:
            yield step
            if step.kernel.body:
                yield from step.kernel.body.all_steps()

    @property
    def unplanned_bytes(self) -> int:
        """Bytes of the arena if no buffers shared memory."""
        return sum(round_up(b.nbytes) for b in self.buffers if b.space is MemorySpace.ARENA)


class Timing(NamedTuple):
    """The start of a step or of a part of it, by `time.perf_counter`, and its seconds."""

    step: Step
    start: float
    seconds: float


def round_up(nbytes: int) -> int:
    """Return the size of a buffer in the arena: `nbytes`, rounded up to the alignment."""
    return math.ceil(nbytes / ALIGNMENT) * ALIGNMENT


Memory = Mapping[Buffer, Array]  # the bytes of each buffer

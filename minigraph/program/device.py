"""The interface of a device: a `Backend`, and an `Executor` for each program.

CONTRIBUTING.md shows how to add a device.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from minigraph.autotune.candidate import Layouts, Problem
from minigraph.cache import Entry
from minigraph.distributed import World
from minigraph.errors import DeviceError
from minigraph.graph import Array, DType, Graph, Node, Replica, Shape, cast
from minigraph.passes.kernels.horizontal_fusion import HorizontalFusionLimits
from minigraph.program.steps import (
    Buffer,
    Choice,
    Kernel,
    Memory,
    MemorySpace,
    Program,
    Step,
    Timing,
    View,
)


class Tunable(NamedTuple):
    """The problem of a node, and the layouts of its inputs and results.

    Without layouts, only the layout pass uses the problem: the node has a single algorithm.
    """

    problem: Problem
    layouts: Layouts


Done = Callable[[], object]


def nothing() -> None:
    """Do nothing."""


def on_host(array: Array) -> Array:
    """Return a NumPy array; CuPy arrays have a method for that."""
    return array if isinstance(array, np.ndarray) else array.get()


class Executor(ABC):
    """A program with memory on a device.

    arena     memory for intermediate results, which `bind` may share with another program
    failures  the error of each step whose kernel failed; NumPy computed these steps
    """

    arena: object = None

    def __init__(self) -> None:
        self.failures: dict[Step, str] = {}

    @property
    def launches(self) -> int:
        """Number of native calls from Python in a call."""
        return 0

    @property
    def syncs(self) -> int:
        """Number of waits for the device in a call, before its results are read."""
        return 0

    @abstractmethod
    def __call__(self, inputs: Sequence[Array], done: Done = nothing) -> list[Array]:
        """Run all steps and return the outputs, which belong to the caller.

        inputs  the arrays for the program's `inputs`
        done    called once all parameters have their new values

        A call is atomic, even if an input is invalid, memory is missing, or a signal's handler
        raises: either all parameters have their new values and `done` was called, or none has a
        new value and `done` was not called.
        """

    @abstractmethod
    def profile(
        self, inputs: Sequence[Array], done: Done = nothing
    ) -> tuple[list[Array], list[Timing]]:
        """Call the program step by step; return the outputs, and the time of each step."""


class ReservedMemory:
    """Memory for an arena that is allocated during compilation; this base class has none."""

    def arenas(self, nbytes: int) -> Sequence[Any]:
        """Return an arena of `nbytes` bytes, or nothing."""
        return ()

    def close(self) -> None:
        """Free the memory that no arena uses."""


NOTHING_RESERVED = ReservedMemory()


class Backend(ABC):
    """A device, opened with the values of the options.

    A subclass must set `device` and define `kernel` and `bind`.  The other defaults describe a
    device with separate memory, but without a library, a compiler or caches.

    device             name, as in `comp_graph(device=...)`
    versions           of libraries and hardware on which results or caches depend, by name
    why_no_jit         why kernels cannot be generated; "" if they can
    tuning             kind of the cache entries for measurements; "" if nothing is measured
    tunes              mode for `autotune="tune"`: "exhaustive" without a cost model that shortlists
                       candidates
    horizontal_fusion  limits on the parameter updates that share a kernel
    saturation         elements of an array whose copy, and rows of a square matrix whose product,
                       occupy the whole device
    blocks             channels of a block in each blocked layout of images, the most first
    unrolls            whether loops must be unrolled, because the device has no `loop`
    ignored_options    options without effect on the device, each with the reason
    """

    device: str
    versions: Mapping[str, str] = {}
    why_no_jit: str = ""
    tuning: str = ""
    tunes: str = "tune"
    horizontal_fusion: HorizontalFusionLimits = HorizontalFusionLimits()
    saturation: tuple[int, int] = 1 << 24, 1 << 10
    blocks: Sequence[int] = ()
    unrolls: bool = True
    ignored_options: Mapping[str, str] = {}

    @classmethod
    def check(cls, number: int | None) -> None:
        """Raise DeviceError if the machine lacks the device; by default it has the device.

        number  the 1 in "cuda:1"; None without a number
        """
        return

    def __init__(
        self,
        number: int | None = None,
        values: Mapping[str, Any] = MappingProxyType({}),
        on_disk: bool = True,
        world: World | None = None,
    ) -> None:
        """Open the device.

        values   of all options
        on_disk  whether the device may keep kernels on disk
        world    processes whose devices to connect; each of them opens its own
        """
        return

    # ------------------------------------------------------------ kernels

    @abstractmethod
    def kernel(self, node: Node, strides: Sequence[Shape], choice: Choice | None = None) -> Kernel:
        """Return the kernel for `node`, whose inputs have these strides in bytes.

        choice  for the node, or for its first op if an activation is fused to it

        Return a `NumpyKernel` for a node that the device does not support.
        """

    def loop(self, node: Node, strides: Sequence[Shape], body: Program) -> Kernel:
        """Return the kernel for a loop with the program of one step, made by `lower_body`.

        strides  of the inputs of `node`, in bytes
        """
        raise DeviceError(
            f"{node!r} {node.source}: device {self.device} cannot run loops; they must be unrolled"
        )

    def tunable(self, node: Node, strides: Sequence[Shape]) -> Tunable | None:
        """Return the problem of `node`; None if it has no candidates."""
        return None

    def refusal(self, option: str, value: str) -> str:
        """Return why the device does not support a value of `amp` or `precision`; "" if it does."""
        return "only CPUs with AMX support it" if value == "bf16x3" else ""

    # ------------------------------------------------------------ memory

    @abstractmethod
    def bind(self, program: Program, arenas: Sequence[Any] = ()) -> Executor:
        """Return an executor of the program.

        arenas  of programs that never run at the same time; the executor shares a large enough one
        """

    def run_alone(self, step: Step, memory: Memory) -> None:
        """Run one step on arrays in the host's memory."""
        inputs = {b: Buffer(MemorySpace.INPUT, b.nbytes) for b in step.reads}
        outputs = {b: Buffer(MemorySpace.OUTPUT, b.nbytes) for b in step.writes}
        scratch = Buffer(MemorySpace.ARENA, step.scratch.nbytes)

        def moved(buffers: Mapping[Buffer, Buffer], views: Sequence[View]) -> tuple[View, ...]:
            return tuple(replace(view, buffer=buffers[view.buffer]) for view in views)

        reads, writes = moved(inputs, step.inputs), moved(outputs, step.outputs)
        copy = replace(step, inputs=reads, outputs=writes, scratch=scratch)
        program = Program(
            Graph((), ()),
            [copy],
            outputs=[*copy.outputs],
            buffers=[*inputs.values(), *outputs.values(), scratch],
            arena_bytes=scratch.nbytes,
        )
        results = self.bind(program)([memory[buffer] for buffer in inputs])
        for view, result in zip(step.outputs, results, strict=True):
            view.array(memory[view.buffer])[...] = on_host(result)

    def reserve_memory(self, nbytes: int) -> ReservedMemory:
        """Return `nbytes` of memory that the device makes ready in the background."""
        return NOTHING_RESERVED

    def array(self, value: Any) -> Array | None:
        """Return a value in the device's memory as an array; None for any other value."""
        return None

    def cast(self, array: Array, dtype: DType) -> Array:
        """Return an array in another dtype, as `graph.cast` does."""
        return cast(array, dtype)

    def replica(self, array: Array) -> Replica:
        """Return a copy of a parameter's value that lives in an array of the device.

        array  contiguous, as `array` returns it; the caller keeps it alive
        """
        raise DeviceError(f"{self.device} has no memory that another library shares")

    def uploader(self) -> Callable[[Array], Array] | None:
        """Return a function that copies an array to the device beside calls of other threads.

        A single thread may call it.  None if the device uses the host's memory.
        """
        return None

    def ordered(self, stream: int) -> AbstractContextManager[Any]:
        """Return a context whose calls run after the work that `stream` has so far."""
        return contextlib.nullcontext()

    # ------------------------------------------------------------ caches

    def environment(self, kind: str) -> Mapping[str, str]:
        """Return the environment of cache entries of a kind, by name; {} if it has none."""
        return {}

    def kernels(self, program: Program) -> list[Entry]:
        """Return the cache entries of the program's generated kernels."""
        return []

    def keep_kernels(self, entries: Sequence[Entry]) -> None:
        """Add generated kernels of another process or machine to the device's cache."""
        return

"""What a device must offer to run programs: a `Backend`, and an `Executor` for each program.

CONTRIBUTING.md shows how to add a device.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple, Self

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
    """The problem that a node is, and how its inputs and results lie.

    Without layouts there is nothing to choose for the node itself: all its candidates differ in
    those.
    """

    problem: Problem
    layouts: Layouts


Done = Callable[[], object]


def nothing() -> None:
    """Do nothing."""


class Executor(ABC):
    """A program with memory on a device.

    arena     its memory for intermediate results, which `bind` may give to another program
    failures  steps whose kernels have failed, and why; NumPy has done their work
    """

    arena: object = None

    def __init__(self) -> None:
        self.failures: dict[Step, str] = {}

    @property
    def launches(self) -> int:
        """Native calls from Python per call."""
        return 0

    @property
    def syncs(self) -> int:
        """How often a call waits for the device before its results are asked for."""
        return 0

    @abstractmethod
    def __call__(self, inputs: Sequence[Array], done: Done = nothing) -> list[Array]:
        """Run all steps and return the outputs, which belong to the caller.

        inputs  the arrays for the program's `inputs`
        done    called when all parameters have their new values

        A call whose parameters change is not cut in two: where it raises, whether an input does not
        fit, memory is missing, or a signal's handler says so, all of them are changed and `done`
        has been called, or none is and it has not.
        """

    @abstractmethod
    def profile(
        self, inputs: Sequence[Array], done: Done = nothing
    ) -> tuple[list[Array], list[Timing]]:
        """Run all steps one by one; return the outputs, and when each began and how long it took.

        Otherwise as a call.
        """


class ReservedMemory:
    """Memory for an arena, made ready before its size is known; here there is none."""

    def arenas(self, nbytes: int) -> Sequence[Any]:
        """Return an arena of so many bytes, or nothing."""
        return ()

    def close(self) -> None:
        """Let the memory go, but for an arena of it: nothing prepares it from now on."""


NOTHING_RESERVED = ReservedMemory()


class Backend(ABC):
    """A device: what computes there, and with which settings it was opened.

    A device has to say its name and define `kernel` and `bind`.  The defaults of all else are those
    of a device with memory of its own, without a library, a compiler or caches.

    device           its name, as users give it
    versions         of the libraries and the hardware on which results or caches depend
    why_no_jit       why kernels cannot be generated; empty if they can
    tuning           the kind of cache entries that keep measurements of its algorithms; empty if
                     nothing is measured
    tunes            what `autotune="tune"` means here: "exhaustive" where no model of cost says
                     which candidates suffice
    horizontal_fusion  which updates of parameters are so small that one kernel does many of them
    saturating       elements of an array, and rows of a square matrix, whose copy and product keep
                     all of the device busy
    block            channels side by side in its blocked layout of images; 1: it has no such layout
    unrolls          whether loops have to be unrolled, because `loop` cannot run them
    ignored_options  the options that have no effect here, each with the reason
    """

    device: str
    versions: Mapping[str, str] = {}
    why_no_jit: str = ""
    tuning: str = ""
    tunes: str = "tune"
    horizontal_fusion: HorizontalFusionLimits = HorizontalFusionLimits()
    saturating: tuple[int, int] = 1 << 24, 1 << 10
    block: int = 1
    unrolls: bool = True
    ignored_options: Mapping[str, str] = {}

    @classmethod
    def check(cls, number: int | None) -> None:
        """Raise DeviceError where the device is not there; some always are.

        number  of "cuda:1"; None without one
        """
        return

    @classmethod
    def open(
        cls,
        number: int | None,
        values: Mapping[str, Any],
        on_disk: bool = True,
        world: World | None = None,
    ) -> Self:
        """Return the device, opened with the values of all options.

        on_disk  whether it may keep kernels on disk
        world    the processes whose devices it is to be connected with; all of them call this
        """
        return cls()

    # ------------------------------------------------------------ kernels

    @abstractmethod
    def kernel(self, node: Node, strides: Sequence[Shape], choice: Choice | None = None) -> Kernel:
        """Return the kernel for `node`, whose inputs have these strides in bytes.

        choice  what was chosen for the node, or for its first op if an activation follows it

        NumPy computes what the device has no kernel for: `NumpyKernel`.
        """

    def loop(self, node: Node, strides: Sequence[Shape], body: Program) -> Kernel:
        """Return the kernel for a loop, one step of which `body` computes: see `lower_body`.

        strides  of the inputs of `node`, in bytes
        """
        raise DeviceError(
            f"{node!r} {node.source}: device {self.device} runs no loops, which are unrolled"
        )

    def tunable(self, node: Node, strides: Sequence[Shape]) -> Tunable | None:
        """Return what may be measured for `node`; None if there is nothing to choose."""
        return None

    def refusal(self, option: str, value: str) -> str:
        """Return why products are not computed as `amp` or `precision` says; "" if they are."""
        return "only processors compute so, with AMX" if value == "bf16x3" else ""

    # ------------------------------------------------------------ memory

    @abstractmethod
    def bind(self, program: Program, arenas: Sequence[Any] = ()) -> Executor:
        """Return the program with its memory, ready to run.

        arenas  of programs that never run at the same time: one that is large enough is shared
        """

    def run_alone(self, step: Step, memory: Memory) -> None:
        """Run one step as a program would, on arrays in the memory of the host."""
        inputs = {b: Buffer(MemorySpace.INPUT, b.nbytes) for b in step.reads}
        outputs = {b: Buffer(MemorySpace.OUTPUT, b.nbytes) for b in step.writes}
        scratch = Buffer(MemorySpace.ARENA, step.scratch.nbytes)

        def on(buffers: Mapping[Buffer, Buffer], views: Sequence[View]) -> tuple[View, ...]:
            return tuple(replace(view, buffer=buffers[view.buffer]) for view in views)

        reads, writes = on(inputs, step.inputs), on(outputs, step.outputs)
        alone = replace(step, inputs=reads, outputs=writes, scratch=scratch)
        program = Program(
            Graph((), ()),
            [alone],
            outputs=[*alone.outputs],
            buffers=[*inputs.values(), *outputs.values(), scratch],
            arena_bytes=scratch.nbytes,
        )
        results = self.bind(program)([memory[buffer] for buffer in inputs])
        for view, result in zip(step.outputs, results, strict=True):
            view.array(memory[view.buffer])[...] = result

    def reserve_memory(self, nbytes: int) -> ReservedMemory:
        """Have so much memory made ready until it is closed."""
        return NOTHING_RESERVED

    def array(self, value: Any) -> Array | None:
        """Return a value that is in the memory of the device already, as its array; else None."""
        return None

    def cast(self, array: Array, dtype: DType) -> Array:
        """Return an array in another dtype, as `graph.cast` does."""
        return cast(array, dtype)

    def replica(self, array: Array) -> Replica:
        """Return a copy of a parameter's value that lies in an array of the device.

        array  contiguous, as `array` returns it; its memory stays the caller's
        """
        raise DeviceError(f"{self.device} has no memory that another library shares")

    def ordered(self, stream: int) -> AbstractContextManager[Any]:
        """Let calls in the context come after what a stream of the caller has been given so far."""
        return contextlib.nullcontext()

    # ------------------------------------------------------------ caches

    def environment(self, kind: str) -> Mapping[str, str]:
        """Return where cache entries of a kind hold, by name; empty if it has no use for them."""
        return {}

    def kernels(self, program: Program) -> list[Entry]:
        """Return the entries of the generated kernels of a program."""
        return []

    def keep_kernels(self, entries: Sequence[Entry]) -> None:
        """Keep kernels that were generated elsewhere; a device that generates none has no use."""
        return

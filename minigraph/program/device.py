"""What a device must offer to run programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from minigraph.autotune.candidate import Layouts, Problem
from minigraph.cache import Entry
from minigraph.graph import Array, DType, Node, Shape
from minigraph.passes.kernels.gathering import Gathering
from minigraph.passes.kernels.products import Products
from minigraph.program.steps import Choice, Kernel, Memory, Program, Step, Timing


class Tunable(NamedTuple):
    """The problem that a node is, and how its inputs and results lie.

    Without layouts there is nothing to choose for the node itself: all its candidates differ in
    those.
    """

    problem: Problem
    layouts: Layouts


Done = Callable[[], object]
# What is told of a step and of the memory that it uses before it runs; returns what to do after.
Look = Callable[[Step, Memory], Done]


def nothing() -> None:
    """Do nothing."""


def look_away(step: Step, memory: Memory) -> Done:
    """Look at no step."""
    return nothing


class Executor(Protocol):
    """A program with memory on a device."""

    @property
    def arena(self) -> object:
        """Its memory for intermediate results, which another program may share."""

    @property
    def launches(self) -> int:
        """Native calls from Python per call."""

    @property
    def syncs(self) -> int:
        """How often a call waits for the device before its results are asked for."""

    @property
    def failures(self) -> dict[Step, str]:
        """Steps whose kernels have failed, and why; NumPy has done their work."""

    def __call__(self, inputs: Sequence[Array], done: Done = nothing) -> list[Array]:
        """Run all steps and return the outputs, which belong to the caller.

        inputs  the arrays for the program's `inputs`
        done    called when all parameters have their new values

        A call whose parameters change is not cut in two: where it raises, whether an input does not
        fit, memory is missing, or a signal's handler says so, all of them are changed and `done`
        has been called, or none is and it has not.
        """

    def profile(
        self, inputs: Sequence[Array], done: Done = nothing
    ) -> tuple[list[Array], list[Timing]]:
        """Run all steps one by one; return the outputs, and when each began and how long it took.

        Otherwise as a call.
        """


class Inspectable(Executor, Protocol):
    """An executor whose steps can be looked at, because their memory is the host's."""

    def inspect(self, inputs: Sequence[Array], done: Done, look: Look) -> list[Array]:
        """Run all steps one by one, with `look` at each; otherwise as a call.

        Where `look` raises an error, parameters may have changed.
        """


class Ahead:
    """Memory for an arena, made ready before its size is known; here there is none."""

    def arenas(self, nbytes: int) -> Sequence[Any]:
        """Return an arena of so many bytes, or nothing."""
        return ()

    def drop(self) -> None:
        """Let the memory go: other work needs some first."""


NOTHING_AHEAD = Ahead()


class Backend(Protocol):
    """A device: what computes there, and with which settings it was opened."""

    device: str
    versions: Mapping[str, str]  # of the libraries that it uses
    why_no_jit: str  # why kernels cannot be generated; empty if they can
    tuning: str  # the kind of cache entries that measurements of its algorithms are
    gathering: Gathering  # which updates are small here
    products: Products | None  # which products generated kernels compute here; None: none
    unrolls: bool  # whether loops have to be unrolled, because it cannot run them

    @property
    def block(self) -> int:
        """Channels that lie side by side in its blocked layout of images; 1 if it has none."""

    def why_no_amp(self, amp: str) -> str:
        """Return why convolutions and products are not computed in a small type; "" if they are."""

    def tunable(self, node: Node, strides: Sequence[Shape]) -> Tunable | None:
        """Return what may be measured for `node`; None if there is nothing to choose."""

    def kernel(self, node: Node, strides: Sequence[Shape], choice: Choice | None = None) -> Kernel:
        """Return the kernel for `node`, whose inputs have these strides in bytes.

        choice  what was chosen for the node, or for its first op if an activation follows it
        """

    def loop(self, node: Node, strides: Sequence[Shape], body: Program) -> Kernel:
        """Return the kernel for a loop, one step of which `body` computes: see `lower_body`.

        strides  of the inputs of `node`, in bytes
        """

    def array(self, value: Any) -> Array | None:
        """Return a value that is in the memory of the device already, as its array; else None."""

    def cast(self, array: Array, dtype: DType) -> Array:
        """Return an array in another dtype, as `graph.cast` does."""

    def ahead(self, nbytes: int) -> AbstractContextManager[Ahead]:
        """Have so much memory made ready meanwhile; what nobody takes inside goes."""

    def bind(self, program: Program, arenas: Sequence[Any] = ()) -> Executor:
        """Return the program with its memory, ready to run.

        arenas  of programs that never run at the same time: one that is large enough is shared
        """

    def run_alone(self, step: Step, memory: Memory) -> None:
        """Run one step as a program would, on arrays in the memory of the host."""

    def environment(self, kind: str) -> Mapping[str, str]:
        """Return where cache entries of a kind hold, by name; empty if it has no use for them."""

    def kernels(self, program: Program) -> list[Entry]:
        """Return the entries of the generated kernels of a program."""

    def keep_kernels(self, entry: Entry) -> str:
        """Keep kernels that were generated elsewhere; return why not, or an empty string."""

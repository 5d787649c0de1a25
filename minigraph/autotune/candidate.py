"""What can be measured: a problem, and the ways to compute it."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np

from minigraph.autotune.measurement import (
    Key,
    Measurement,
    ProblemTable,
    Recipe,
    merge,
    table,
)
from minigraph.autotune.sums import Sums
from minigraph.cache import Entry
from minigraph.graph import Array, Spec, aligned_empty

ALIGNMENT = 64  # bytes


class Runner(Protocol):
    """What computes a problem: a device's kernel.

    scratch  bytes of memory that it needs while it runs
    """

    scratch: int

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Compute `outputs` from `inputs`, all contiguous in the layouts of the candidate."""


Run = Callable[[Sequence[Array], Sequence[Array], Array], None]  # inputs, outputs and scratch


class Workbench(Protocol):
    """Where candidates are measured: its arrays, and its time.

    NumPy's functions take its arrays, as they do any that follow NumPy's protocols.

    chunk  elements that are compared at once
    """

    chunk: int

    def current(self) -> AbstractContextManager[None]:
        """Return a context for all that is done with its arrays."""

    def empty(self, nbytes: int) -> Array:
        """Return uninitialised bytes that begin at a multiple of 64 at least."""

    def put(self, array: Array) -> Array:
        """Return a NumPy array as one of the workbench's."""

    def stored(self, array: Array) -> Array:
        """Return one of its arrays, which was just made, at the place where it may stay."""

    def compile(self, kernels: Iterable[Runner]) -> None:
        """Compile what kernels need, as many at once as there are processors."""

    def runner(self, kernel: Runner) -> Run:
        """Return what runs a kernel; raises where it cannot be run."""

    def seconds(self, run: Callable[[], None], calls: int, clock: Callable[[], float]) -> float:
        """Run so many times, until the last is done; return what one run took."""


class HostBench:
    """The workbench of this machine's processor."""

    chunk = 1 << 16  # they stay in the cache
    _free: Array | None = None  # memory of which arrays are cut, as far as they fit

    def within(self, memory: Array) -> Self:
        """Return a workbench whose arrays lie in memory that has its pages already."""
        made = copy.copy(self)
        made._free = memory
        return made

    def current(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def empty(self, nbytes: int) -> Array:
        taken = math.ceil(nbytes / ALIGNMENT) * ALIGNMENT
        if self._free is None or taken > self._free.nbytes:
            return aligned_empty(Spec((nbytes,), np.dtype(np.uint8)))
        array, self._free = self._free[:nbytes], self._free[taken:]
        return array

    def put(self, array: Array) -> Array:
        return array

    def stored(self, array: Array) -> Array:
        if self._free is None:
            return array
        kept = self.empty(array.nbytes).view(array.dtype).reshape(array.shape)
        kept[...] = array
        return kept

    def compile(self, kernels: Iterable[Runner]) -> None:
        pass

    def runner(self, kernel: Runner) -> Run:
        return kernel.run

    def seconds(self, run: Callable[[], None], calls: int, clock: Callable[[], float]) -> float:
        start = clock()
        for _ in range(calls):
            run()
        return (clock() - start) / calls


@dataclass(frozen=True)
class Candidate:
    """One way to compute a problem.

    layouts        of the inputs, then of the results
    make           returns the kernel; raises where the library cannot do it
    deterministic  whether it gives the same bits every run
    precision      what it computes in: the name of a dtype, or "tf32"
    reference      a library's slow reference implementation, which is never run
    recipe         what `Problem.remake` makes the kernel of in another process
    """

    name: str
    layouts: tuple[str, ...]
    make: Callable[[], Runner]
    deterministic: bool = True
    precision: str = "float32"
    reference: bool = False
    recipe: Recipe | None = None

    @property
    def key(self) -> Key:
        """What tells it from the others of its problem."""
        return self.name, self.layouts

    def measurement(self, workspace: int, error: str = "") -> Measurement:
        """Return what is known of it before it is timed."""
        return Measurement(
            self.name,
            self.layouts,
            workspace,
            self.deterministic,
            self.precision,
            error=error,
            recipe=self.recipe,
        )


@dataclass(frozen=True)
class Problem:
    """What has to be computed; problems with the same subject are the same.

    kind        of the entries that keep its measurements
    subject     all that its measurements depend on besides the environment, in words
    inputs      their shapes and dtypes, all of them floats
    results     likewise
    meaning     the workbench's arrays to a tuple of them: what every candidate has to give
    arrange     an array, and a layout, to a contiguous array that lies so
    layouts     all layouts of inputs and results in which there are candidates
    candidates  called with the layouts of inputs and results, yields what computes it there, or,
                called with None, in all of them; the first is what a heuristic would choose
    work        floating-point operations: large problems are measured first
    workbench   where it is measured
    remake      makes a kernel of a candidate's layouts and recipe, where candidates have recipes
    estimate    roughly the seconds that it takes in layouts, for where nothing is measured
    sums        of its only result, by which that can be checked in less time than `meaning` takes
    """

    kind: str = field(compare=False)
    subject: str
    inputs: tuple[Spec, ...] = field(compare=False)
    results: tuple[Spec, ...] = field(compare=False)
    meaning: Callable[..., tuple[Array, ...]] = field(compare=False)
    arrange: Callable[[Array, str], Array] = field(compare=False)
    layouts: Collection[tuple[str, ...]] = field(compare=False)
    candidates: Callable[[tuple[str, ...] | None], Iterable[Candidate]] = field(compare=False)
    work: float = field(compare=False)
    workbench: Workbench = field(default=HostBench(), compare=False)
    remake: Callable[[tuple[str, ...], Recipe], Runner] | None = field(default=None, compare=False)
    estimate: Callable[[tuple[str, ...]], float] | None = field(default=None, compare=False)
    sums: Sums | None = field(default=None, compare=False)

    def table(self, entry: Entry) -> ProblemTable | str:
        """Return the table in an entry about the problem, or in words what is odd about it."""
        found = table(entry)
        if isinstance(found, ProblemTable):
            for measurement in found.measurements:
                if measurement.layouts not in self.layouts:
                    return f"layouts are {', '.join(measurement.layouts)}"[:80]
        return found

    def merge(self, old: Entry, new: Entry) -> Entry:
        """Return an entry about the problem with the candidates of both that are not odd."""
        return merge(old, new, self.table)

    def maker(self, measurement: Measurement) -> Callable[[], Runner] | None:
        """Return what makes the kernel that was measured; None if the library has it no longer."""
        if self.remake and measurement.recipe:
            return functools.partial(self.remake, measurement.layouts, measurement.recipe)
        offered = self.candidates(measurement.layouts)
        return next((c.make for c in offered if c.name == measurement.name), None)

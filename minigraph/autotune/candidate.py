"""What can be measured: a problem, the candidates that compute it, and where they run."""

from __future__ import annotations

import contextlib
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from minigraph.autotune.measurement import (
    KernelRecipe,
    Key,
    Measurement,
    Policy,
    ProblemTable,
    table,
)
from minigraph.cache import Entry
from minigraph.errors import GraphError
from minigraph.graph import Array, Spec, aligned_empty

Layouts = tuple[Any, ...]  # of the inputs, then of the results; `str` of each is its name


def names_of(layouts: Layouts) -> tuple[str, ...]:
    """Return the names by which reports and caches call layouts."""
    return tuple(map(str, layouts))


class Runner(Protocol):
    """What computes a problem: a device's kernel.

    scratch  bytes of memory that it needs while it runs
    """

    scratch: int

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Compute `outputs` from `inputs`, all contiguous in the layouts of the candidate."""


Run = Callable[[Sequence[Array], Sequence[Array], Array], None]  # inputs, outputs and scratch


class Workbench:
    """Where candidates are measured: its arrays, and its time; here those of the host.

    NumPy's functions take its arrays, as they do any that follow NumPy's protocols.

    chunk  elements that are compared at once
    """

    chunk = 1 << 16  # they stay in the cache

    def current(self) -> AbstractContextManager[None]:
        """Return a context for all that is done with its arrays."""
        return contextlib.nullcontext()

    def empty(self, nbytes: int) -> Array:
        """Return uninitialised bytes that begin at a multiple of 64 at least."""
        return aligned_empty(Spec((nbytes,), np.dtype(np.uint8)))

    def put(self, array: Array) -> Array:
        """Return a NumPy array as one of the workbench's."""
        return array

    def compile(self, kernels: Iterable[Runner]) -> None:
        """Compile what kernels need, as many at once as there are processors."""

    def runner(self, kernel: Runner) -> Run:
        """Return what runs a kernel; raises where it cannot be run."""
        return kernel.run

    def seconds(self, run: Callable[[], None], calls: int, clock: Callable[[], float]) -> float:
        """Run so many times, until the last is done; return what one run took."""
        start = clock()
        for _ in range(calls):
            run()
        return (clock() - start) / calls

    def examine(self, error: Exception, name: str) -> None:
        """Raise MemoryError or DeviceLost where an error says nothing of the candidate that ran.

        name  of the candidate
        """
        if isinstance(error, MemoryError):
            raise error

    def release(self) -> None:
        """Give back memory that no array uses."""


@dataclass(frozen=True)
class Candidate:
    """One way to compute a problem.

    layouts        of the inputs, then of the results
    make           returns the kernel; raises where the library cannot do it
    deterministic  whether it gives the same bits every run
    precision      what it computes in: the name of a dtype, "tf32" or "bf16x3"
    recipe         what the problem makes the kernel of in another process
    """

    name: str
    layouts: Layouts
    make: Callable[[], Any]
    deterministic: bool = True
    precision: str = "float32"
    recipe: KernelRecipe | None = None

    @functools.cached_property
    def kernel(self) -> Any:
        """The kernel, made when it is first asked for; raises where the library cannot do it."""
        return self.make()

    @property
    def key(self) -> Key:
        """What tells it from the others of its problem."""
        return self.name, names_of(self.layouts)

    def measurement(self, workspace: int, error: str = "") -> Measurement:
        """Return the measurement of the candidate before it is timed."""
        facts = (*self.key, workspace, self.deterministic, self.precision)
        return Measurement(*facts, error=error, recipe=self.recipe)


@dataclass(frozen=True)
class SumAxis:
    """An axis of a result that may be summed over.

    length  of the axis, or of each of its equal parts, which are summed alike: groups of channels
    result  which axis of the result it is
    inputs  by the positions of the inputs that have it: which axis of theirs
    added   the positions of inputs that do not have it, and are added to all elements along it
    """

    length: int
    result: int
    inputs: Mapping[int, int]
    added: Sequence[int] = ()


@dataclass(frozen=True)
class Sums:
    """The axes of a result over which sums can be computed from sums of the inputs.

    meaning  (shape of the result, inputs) to the result, in NumPy, for axes of any length
    """

    axes: Sequence[SumAxis]
    meaning: Callable[..., Array] = field(compare=False)


class Problem(ABC):
    """What has to be computed; problems with the same subject are the same.

    kind       of the entries that keep its measurements
    subject    all that its measurements depend on besides the environment, in words
    inputs     their shapes and dtypes, all of them floats
    results    likewise
    layouts    all layouts in which there are candidates, by their names
    work       floating-point operations: large problems are measured first
    workbench  where it is measured
    sums       of its only result, by which that can be checked in less time than `meaning` takes
    """

    kind: str
    subject: str
    inputs: tuple[Spec, ...]
    results: tuple[Spec, ...]
    layouts: Mapping[tuple[str, ...], Layouts]
    work: float
    workbench: Workbench
    sums: Sums | None = None

    def __init__(self) -> None:
        self._by_layouts: dict[Layouts, Iterable[Candidate]] = {}  # what was offered
        self._chosen: dict[Key, Candidate] = {}  # that `release` has left

    @abstractmethod
    def meaning(self, *xs: Array) -> tuple[Array, ...]:
        """Return what every candidate has to give, of and as arrays of the workbench."""

    @abstractmethod
    def arrange(self, array: Array, layout: Any) -> Array:
        """Return a contiguous array that lies as a layout says.

        The first of more than two axes is the first in every layout.
        """

    @abstractmethod
    def offer(self, layouts: Any) -> Iterable[Candidate]:
        """Return what computes it in these layouts; a heuristic chooses the first."""

    def candidates(self, layouts: Layouts | None = None) -> Iterator[Candidate]:
        """Yield what `offer` returns for these layouts, or for all; it is asked once."""
        for each in (layouts,) if layouts else self.layouts.values():
            offered = self._by_layouts.get(each) or self.offer(each)
            self._by_layouts[each], candidates = itertools.tee(offered)
            yield from candidates

    def release(self, keep: Collection[Key] = ()) -> None:
        """Forget the candidates, which take memory, but for those with these keys."""
        self._chosen = {c.key: c for c in self.candidates() if c.key in keep} if keep else {}
        self._by_layouts.clear()

    def shortlist(self, layouts: Layouts) -> Sequence[Candidate]:
        """Return the candidates that may be the fastest in these layouts, the likeliest first.

        With one, its time would tell nothing, so it is not measured.
        """
        return [*self.candidates(layouts)]

    def estimate(self, layouts: Layouts) -> float | None:
        """Return roughly the seconds that it takes in these layouts; None if nobody knows."""
        return None

    def kernel(self, measurement: Measurement) -> Any:
        """Return the kernel that was measured; None if the library has it no longer.

        Each call returns another one: two functions may run at the same time.
        """
        candidate = self._chosen.pop(measurement.key, None)
        if candidate is None:
            offered = self.candidates(self.layouts[measurement.layouts])
            candidate = next((c for c in offered if c.name == measurement.name), None)
        return candidate and candidate.kernel

    def read(self, entry: Entry) -> ProblemTable | str:
        """Return the table in an entry about the problem, or in words what is odd about it."""
        contents = table(entry)
        if isinstance(contents, ProblemTable):
            for measurement in contents.measurements:
                if measurement.layouts not in self.layouts:
                    return f"layouts are {', '.join(measurement.layouts)}"[:80]
        return contents


def first_allowed(candidates: Iterable[Candidate], policy: Policy) -> Any:
    """Return the kernel of the first candidate that can be made and that the policy allows.

    If none keeps the limit on its workspace, the limit does not count.  None: there is no other.
    """
    over_limit = None
    for candidate in candidates:
        try:
            kernel = candidate.kernel
        except GraphError:  # described, but the library cannot make it
            continue
        facts = candidate.measurement(kernel.scratch)
        if not policy.allows(facts):
            return kernel
        if not policy.unlimited.allows(facts):
            over_limit = over_limit or kernel
    return over_limit

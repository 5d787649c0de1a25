"""Problems, the candidates that compute them, and the workbench that runs candidates."""

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


def layout_names(layouts: Layouts) -> tuple[str, ...]:
    """Return the names of layouts in reports and caches."""
    return tuple(map(str, layouts))


class Runner(Protocol):
    """A device's kernel that computes a problem.

    scratch  bytes of memory that it uses while it runs
    """

    scratch: int

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Compute `outputs` from `inputs`, all contiguous in the candidate's layouts."""


Run = Callable[[Sequence[Array], Sequence[Array], Array], None]  # inputs, outputs and scratch


class Workbench:
    """A device's arrays and clock, for measuring candidates; this class is the host's.

    The arrays follow NumPy's protocols, so NumPy's functions take them.

    chunk  elements of one comparison
    """

    chunk = 1 << 16  # fits the second-level cache

    def current(self) -> AbstractContextManager[None]:
        """Return a context in which the device's arrays may be used."""
        return contextlib.nullcontext()

    def empty(self, nbytes: int) -> Array:
        """Return uninitialised bytes, aligned to 64 at least."""
        return aligned_empty(Spec((nbytes,), np.dtype(np.uint8)))

    def upload(self, array: Array) -> Array:
        """Return a NumPy array as an array of the device."""
        return array

    def compile(self, kernels: Iterable[Runner]) -> None:
        """Compile the sources of kernels in parallel on all processors."""

    def runner(self, kernel: Runner) -> Run:
        """Return a function that runs a kernel; raise if the kernel cannot run."""
        return kernel.run

    def seconds(self, run: Callable[[], None], calls: int, clock: Callable[[], float]) -> float:
        """Return the mean seconds of `calls` runs, from the first start to the last end."""
        start = clock()
        for _ in range(calls):
            run()
        return (clock() - start) / calls

    def reraise_device_error(self, error: Exception, name: str) -> None:
        """Raise MemoryError or DeviceLost if an error is the machine's, not the candidate's.

        name  of the candidate that ran
        """
        if isinstance(error, MemoryError):
            raise error

    def release(self) -> None:
        """Return unused memory to the device."""


@dataclass(frozen=True)
class Candidate:
    """An algorithm for a problem, in certain layouts.

    layouts        of the inputs, then of the results
    make           returns the kernel; raises if the library does not support it
    deterministic  whether every run gives the same bits
    precision      of the arithmetic: the name of a dtype, "tf32" or "bf16x3"
    recipe         data from which another process makes the same kernel
    """

    name: str
    layouts: Layouts
    make: Callable[[], Any]
    deterministic: bool = True
    precision: str = "float32"
    recipe: KernelRecipe | None = None

    @functools.cached_property
    def kernel(self) -> Any:
        """The kernel, made at the first access; raises if the library does not support it."""
        return self.make()

    @property
    def key(self) -> Key:
        """The name and layouts, which are unique in the problem."""
        return self.name, layout_names(self.layouts)

    def measurement(self, workspace: int, error: str = "") -> Measurement:
        """Return a measurement of the candidate without a time."""
        facts = (*self.key, workspace, self.deterministic, self.precision)
        return Measurement(*facts, error=error, recipe=self.recipe)


@dataclass(frozen=True)
class ChecksumAxis:
    """An axis of a result over which checksums add up elements.

    length          of the axis; of one group if it is the channels of a grouped convolution
    result          index of the axis in the result
    inputs          index of the axis in each input that has it, by the input's position
    reduced_inputs  positions of the inputs without the axis that are added along it, as a bias is
    """

    length: int
    result: int
    inputs: Mapping[int, int]
    reduced_inputs: Sequence[int] = ()


@dataclass(frozen=True)
class ChecksumAxes:
    """The axes of a result whose checksums follow from checksums of the inputs.

    meaning  (shape of the result, *inputs) to the result, in NumPy, for axes of any length
    """

    axes: Sequence[ChecksumAxis]
    meaning: Callable[..., Array] = field(compare=False)


class Problem(ABC):
    """An op with the shapes and dtypes of its operands; equal subjects are equal problems.

    kind       of its entries in the store
    subject    text with everything but the environment on which its measurements depend
    inputs     shapes and floating-point dtypes
    results    shapes and floating-point dtypes
    layouts    the layouts of the candidates, by their names
    work       floating-point operations; the tuner measures large problems first
    workbench  that measures its candidates
    sums       by which checksums verify the only result faster than `meaning` computes it
    """

    kind: str
    subject: str
    inputs: tuple[Spec, ...]
    results: tuple[Spec, ...]
    layouts: Mapping[tuple[str, ...], Layouts]
    work: float
    workbench: Workbench
    sums: ChecksumAxes | None = None

    def __init__(self) -> None:
        self._by_layouts: dict[Layouts, Iterable[Candidate]] = {}  # results of `make_candidates`
        self._retained: dict[Key, Candidate] = {}  # candidates that `release` has not freed

    @abstractmethod
    def meaning(self, *xs: Array) -> tuple[Array, ...]:
        """Return the expected results, from and as arrays of the workbench."""

    @abstractmethod
    def to_layout(self, array: Array, layout: Any) -> Array:
        """Return a contiguous array in a layout.

        Every layout of more than two axes keeps the first axis first.
        """

    @abstractmethod
    def make_candidates(self, layouts: Any) -> Iterable[Candidate]:
        """Return the candidates for these layouts, the heuristic's choice first."""

    def candidates(self, layouts: Layouts | None = None) -> Iterator[Candidate]:
        """Yield the candidates for these layouts, or for all, each made once."""
        for combination in (layouts,) if layouts else self.layouts.values():
            source = self._by_layouts.get(combination) or self.make_candidates(combination)
            self._by_layouts[combination], candidates = itertools.tee(source)
            yield from candidates

    def release(self, keep: Collection[Key] = ()) -> None:
        """Free the candidates, except those with these keys."""
        self._retained = {c.key: c for c in self.candidates() if c.key in keep} if keep else {}
        self._by_layouts.clear()

    def shortlist(self, layouts: Layouts) -> Sequence[Candidate]:
        """Return the candidates that may be the fastest in these layouts, the most likely first.

        If the list has only one candidate, it is used without measuring.
        """
        return [*self.candidates(layouts)]

    def estimate(self, layouts: Layouts) -> float | None:
        """Return a rough prediction of the seconds in these layouts; None without a model."""
        return None

    def kernel(self, measurement: Measurement) -> Any:
        """Return a new kernel of a measured candidate; None if this library lacks it.

        Functions that run at the same time must not share a kernel.
        """
        candidate = self._retained.pop(measurement.key, None)
        if candidate is None:
            candidates = self.candidates(self.layouts[measurement.layouts])
            candidate = next((c for c in candidates if c.name == measurement.name), None)
        return candidate and candidate.kernel

    def read(self, entry: Entry) -> ProblemTable | str:
        """Return the table in an entry about the problem, or why the entry is invalid."""
        result = table(entry)
        if isinstance(result, ProblemTable):
            for measurement in result.measurements:
                if measurement.layouts not in self.layouts:
                    return f"layouts are {', '.join(measurement.layouts)}"[:80]
        return result


def first_allowed(candidates: Iterable[Candidate], policy: Policy) -> Any:
    """Return the kernel of the first candidate that can be made and that the policy allows.

    If every candidate exceeds the workspace limit, the limit is ignored.  None without a candidate.
    """
    over_limit = None
    for candidate in candidates:
        try:
            kernel = candidate.kernel
        except GraphError:  # the library describes the kernel, but does not support it
            continue
        facts = candidate.measurement(kernel.scratch)
        if not policy.allows(facts):
            return kernel
        if not policy.unlimited.allows(facts):
            over_limit = over_limit or kernel
    return over_limit

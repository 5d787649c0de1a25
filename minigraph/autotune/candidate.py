"""What can be measured: a problem, and the ways to compute it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from minigraph.graph import Array, Spec, aligned_empty


class Runner(Protocol):
    """What computes a problem.  `scratch`: bytes of memory that it needs while it runs."""

    scratch: int

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Compute `outputs` from `inputs`, all contiguous in the layouts of the candidate."""


class Workbench(Protocol):
    """Where candidates are measured: its arrays, and its time.

    NumPy's functions take its arrays, as they do any that follow NumPy's protocols.

    chunk  elements that are compared at once
    """

    chunk: int

    def empty(self, nbytes: int) -> Array:
        """Return uninitialised bytes that begin at a multiple of 64 at least."""

    def put(self, array: Array) -> Array:
        """Return a NumPy array as one of the workbench's."""

    def seconds(self, run: Callable[[], None], calls: int, clock: Callable[[], float]) -> float:
        """Run so many times, until the last is done; return what one run took."""


class Host:
    """The workbench of this machine's processor."""

    chunk = 1 << 16  # they stay in the cache

    def empty(self, nbytes: int) -> Array:
        return aligned_empty(Spec((nbytes,), np.dtype(np.uint8)))

    def put(self, array: Array) -> Array:
        return array

    def seconds(self, run: Callable[[], None], calls: int, clock: Callable[[], float]) -> float:
        start = clock()
        for _ in range(calls):
            run()
        return (clock() - start) / calls


@dataclass(frozen=True)
class Candidate:
    """One way to compute a problem.

    layouts        of the inputs, then of the results
    make           returns what runs it; raises where the library cannot do it
    deterministic  whether it gives the same bits every run
    precision      what it computes in: the name of a dtype, or "tf32"
    reference      a library's slow reference implementation, which is never run
    """

    name: str
    layouts: tuple[str, ...]
    make: Callable[[], Runner]
    deterministic: bool = True
    precision: str = "float32"
    reference: bool = False


@dataclass(frozen=True)
class Problem:
    """What has to be computed; problems with the same subject are the same.

    kind        of the entries that keep its measurements
    subject     all that its measurements depend on besides the environment, in words
    inputs      their shapes and dtypes, all of them floats
    results     likewise
    meaning     the workbench's arrays to a tuple of them: what every candidate has to give
    arrange     an array, and a layout, to a contiguous array that lies so
    candidates  in a fixed order: the first is what a heuristic would choose
    work        floating-point operations: large problems are measured first
    workbench   where it is measured
    """

    kind: str = field(compare=False)
    subject: str
    inputs: tuple[Spec, ...] = field(compare=False)
    results: tuple[Spec, ...] = field(compare=False)
    meaning: Callable[..., tuple[Array, ...]] = field(compare=False)
    arrange: Callable[[Array, str], Array] = field(compare=False)
    candidates: Callable[[], Sequence[Candidate]] = field(compare=False)
    work: float = field(compare=False)
    workbench: Workbench = field(default=Host(), compare=False)

"""The value of a parameter: its copies on devices, and whose turn it is to use it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from minigraph.errors import DeviceError, GraphError
from minigraph.graph.spec import ALIGNMENT, Array, Spec, aligned_empty
from minigraph.platform import forks

HOST = "host"
ON_HOST = frozenset([HOST])  # where the value is current if the host alone has it
T = TypeVar("T")
Locks = tuple[threading.RLock, ...]


class Replica(Protocol):
    """An array of a parameter's shape and dtype in the memory of a device."""

    def upload(self, value: Array) -> None:
        """Copy a value from the host's memory."""

    def download(self, into: Array) -> None:
        """Write the value to the host's memory."""


class State:
    """A value with copies on devices; it knows which copies are current.

    Whoever changes a copy says so; the other copies are updated when they are next asked for.
    A copy keeps its address, which compiled programs hold.  Where there are several threads, the
    value is used within a `Claim` or `alone`.

    The value may lie in memory of another library, on the host (`move`) or on a device (`place`),
    which may change it there at any time.  Then no other device has a copy.
    """

    def __init__(self, spec: Spec) -> None:
        """Make a value that is arbitrary until it is set."""
        self.spec = spec
        self._claims: tuple[weakref.ref[Claim], ...] = ()
        self._copies: dict[str, Any] = {}
        self._current = ON_HOST
        self._shared = ""  # where it lies in memory of another library

    @classmethod
    def of(cls, value: Array, copy: bool = True) -> State:
        """Return a copy of an array as a value; or one that lies in the array, if nobody has it.

        Such an array is contiguous, aligned and writable.
        """
        state = cls(Spec(value.shape, value.dtype))
        if copy:
            state._host[...] = value
        else:
            state._host = value
        return state

    @functools.cached_property
    def _host(self) -> Array:
        return aligned_empty(self.spec)

    def move(self, memory: Array) -> None:
        """Let the value be the one in an array of another library from now on, and lie there.

        memory  of the same shape and dtype, contiguous, aligned and writable

        Programs that use the value have to be bound again (`CompiledFunction.bind`).
        """
        spec = Spec(memory.shape, memory.dtype)
        misplaced = spec.size and memory.ctypes.data % ALIGNMENT
        if spec != self.spec or not memory.flags.carray or misplaced:
            raise GraphError(
                f"a value of {self.spec} takes memory of its own shape and dtype, contiguous, "
                f"writable and aligned to {ALIGNMENT} bytes; this is of {spec}"
            )
        self._host = memory
        self._copies, self._current, self._shared = {}, ON_HOST, HOST

    def place(self, device: str, copy: Replica) -> None:
        """Let the value lie in memory of another library on a device from now on.

        Programs that use the value have to be bound again (`CompiledFunction.bind`).
        """
        self._copies, self._current, self._shared = {device: copy}, frozenset([device]), device

    def read(self) -> Array:
        """Return the value in the host's memory; the caller must not change it."""
        if HOST not in self._current:
            self._copies[min(self._current)].download(self._host)
            if not self._shared:
                self._current |= ON_HOST
        return self._host

    def write(self) -> Array:
        """Return the memory of the host in which programs of the host change the value."""
        if self._current is not ON_HOST:
            self._check_shared(HOST)
            self.read()
            self._current = ON_HOST
        return self._host

    def assign(self, value: Array) -> None:
        """Set the value, wherever it lies; NumPy casts it."""
        if self._shared in ("", HOST):
            self.write()[...] = value
        else:
            self._host[...] = value
            self._copies[self._shared].upload(self._host)

    def on(self, device: str, make: Callable[[Spec], Replica]) -> Any:
        """Return the current copy on a device; `make` allocates it the first time."""
        self._check_shared(device)
        copy = self._copies.get(device)
        if copy is None:
            made = make(self.spec)
            copy = self._copies.setdefault(device, made)  # one, whichever thread is first
        if device not in self._current:
            copy.upload(self.read())
            self._current |= {device}
        return copy

    def on_host(self) -> Array:
        """Return the value in the host's memory, for programs that run there."""
        self._check_shared(HOST)
        return self.read()

    def _check_shared(self, device: str) -> None:
        if self._shared not in ("", device):
            raise DeviceError(
                f"a parameter of {self.spec} lies in memory of another library on the "
                f"{self._shared}, which a function for the {device} cannot share: bring the model "
                "to the device of the function first"
            )

    def written(self, device: str) -> None:
        """Note that the copy on a device has been changed."""
        self._current = frozenset([device])


class Claim:
    """What a function does to values: it reads some and changes others.

    While one claim runs, none runs that changes what it uses or uses what it changes.  All others
    run at the same time.  A claim may run within itself.
    """

    def __init__(self, reads: Iterable[State], changes: Iterable[State]) -> None:
        global _generation
        self.changes = frozenset(changes)
        self.uses = self.changes.union(reads)
        self._lock = forks.reentrant_lock()
        self._place = next(_places)
        self._locks: tuple[int, Locks] = -1, ()  # to hold, so that the others wait
        with _registry:
            for state in self.uses:
                state._claims = (*(c for c in state._claims if c()), weakref.ref(self))
            _generation += 1
        for changer in _claims_on(self.uses, readers=False):
            with changer._lock:  # a run that has begun does not know of this claim
                pass

    def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Return the result of `work`, done while no other thread uses what this claim changes."""
        while True:
            generation, locks = self._locks  # another thread may replace these
            if generation != _generation:
                generation = _generation
                locks = _in_order({self: None, **_claims_on(self.changes)})
                self._locks = generation, locks
            try:  # which costs a call nothing
                return _within(locks, generation, work, arguments)
            except _Outdated:
                pass


def alone(states: Sequence[State], work: Callable[[], T], changes: bool) -> T:
    """Return the result of `work`, which reads the values or, if it `changes` them, writes them.

    No claim runs meanwhile that `work` would disturb or that would disturb it.
    """
    while True:
        generation = _generation
        claims = _claims_on(states, readers=changes)
        with contextlib.suppress(_Outdated):
            return _within((*_in_order(claims), _registry), generation, work, ())


def _claims_on(states: Iterable[State], readers: bool = True) -> dict[Claim, None]:
    """Return the claims that use one of the states, or without readers those that change one."""
    found = ((claim, state) for state in states for c in state._claims if (claim := c()))
    return {claim: None for claim, state in found if readers or state in claim.changes}


_places = itertools.count()
_generation = 0  # how many claims were made
# Held while a claim is made and, after the locks of claims, while a value is used without one.
_registry = forks.reentrant_lock()


def _in_order(claims: Iterable[Claim]) -> Locks:
    """Return the locks of claims in one order for all, so that no threads wait in a circle."""
    return tuple(claim._lock for claim in sorted(claims, key=lambda claim: claim._place))


class _Outdated(Exception):
    """A claim was made since the locks were looked up."""


def _within(locks: Locks, generation: int, work: Callable[..., T], arguments: Iterable[Any]) -> T:
    """Return the result of `work`, done while this thread holds all locks.

    Raises _Outdated if a claim was made since the generation.  One `with` for each lock: no
    interrupt comes between taking a lock and having to release it.
    """
    with locks[0]:
        if len(locks) > 1:
            return _within(locks[1:], generation, work, arguments)
        if _generation != generation:
            raise _Outdated
        return work(*arguments)

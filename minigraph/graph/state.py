"""Values of parameters: their copies on devices, and locks for calls in several threads."""

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
ON_HOST = frozenset([HOST])  # the devices with a current copy if only the host has one
T = TypeVar("T")
Locks = tuple[threading.RLock, ...]


class Replica(Protocol):
    """An array of a parameter's shape and dtype in the memory of a device."""

    def upload(self, value: Array) -> None:
        """Copy a value from the host's memory."""

    def download(self, into: Array) -> None:
        """Write the value to the host's memory."""


class State:
    """A value with copies on devices, which tracks the copies that are current.

    A program that changes a copy calls `mark_written`; an outdated copy is updated on its next use.
    The address of a copy is constant, because compiled programs hold it.  Several threads may use
    the value only within a `Claim` or `run_exclusively`.

    The value may be in memory of another library, on the host (`share_host_memory`) or on a device
    (`share_device_memory`).  That library may change it at any time, so no other device has a copy.
    """

    def __init__(self, spec: Spec) -> None:
        """Make an uninitialised value."""
        self.spec = spec
        self._claims: tuple[weakref.ref[Claim], ...] = ()
        self._copies: dict[str, Any] = {}
        self._current = ON_HOST
        self._shared = ""  # the device of the other library's memory, if it has the value

    @classmethod
    def of(cls, value: Array, copy: bool = True) -> State:
        """Return a value from an array.

        copy  whether to copy the array; else it is contiguous, aligned, writable and not used again
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

    def share_host_memory(self, memory: Array) -> None:
        """Replace the value by an array of another library, and use its memory from now on.

        memory  array of the same shape and dtype, contiguous, aligned and writable

        Programs that use the value have to be bound again (`CompiledFunction.bind`).
        """
        spec = Spec(memory.shape, memory.dtype)
        is_misaligned = spec.size and memory.ctypes.data % ALIGNMENT
        if spec != self.spec or not memory.flags.carray or is_misaligned:
            raise GraphError(
                f"a value of {self.spec} needs memory of the same shape and dtype, contiguous, "
                f"writable and aligned to {ALIGNMENT} bytes; this is {spec}"
            )
        self._host = memory
        self._copies, self._current, self._shared = {}, ON_HOST, HOST

    def share_device_memory(self, device: str, copy: Replica) -> None:
        """Replace the value by `copy`, in memory of another library on a device.

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
        """Return the current value in the host's memory, for a program that changes it there."""
        if self._current is not ON_HOST:
            self._check_shared(HOST)
            self.read()
            self._current = ON_HOST
        return self._host

    def assign(self, value: Array) -> None:
        """Set the value to an array, which NumPy casts."""
        if self._shared in ("", HOST):
            self.write()[...] = value
        else:
            self._host[...] = value
            self._copies[self._shared].upload(self._host)

    def on(self, device: str, allocate: Callable[[Spec], Replica]) -> Any:
        """Return the current copy on a device; `allocate` allocates it the first time."""
        self._check_shared(device)
        copy = self._copies.get(device)
        if copy is None:
            new = allocate(self.spec)
            copy = self._copies.setdefault(device, new)  # another thread may have been first
        if device not in self._current:
            copy.upload(self.read())
            self._current |= {device}
        return copy

    def on_host(self) -> Array:
        """Return the current value in the host's memory, for programs that run there."""
        self._check_shared(HOST)
        return self.read()

    def _check_shared(self, device: str) -> None:
        if self._shared not in ("", device):
            raise DeviceError(
                f"a parameter of {self.spec} is in memory of another library on the "
                f"{self._shared}, which a function for the {device} cannot share: first move the "
                "model to the device of the function"
            )

    def mark_written(self, device: str) -> None:
        """Record that a program changed the copy on a device."""
        self._current = frozenset([device])


def outdated_on(states: Iterable[State], device: str) -> list[State]:
    """Return the states whose value is not on a device, or in memory of another library elsewhere.

    `State.on` brings the value there, or refuses to.
    """
    return [s for s in states if device not in s._current or s._shared not in ("", device)]


class Claim:
    """The values that a function reads, and those that it changes.

    Two claims run at the same time unless one changes a value that the other reads or changes.  A
    claim is reentrant.
    """

    def __init__(self, reads: Iterable[State], changes: Iterable[State]) -> None:
        global _generation
        self.changes = frozenset(changes)
        self.uses = self.changes.union(reads)
        self._lock = forks.reentrant_lock()
        self._number = next(_claim_numbers)
        self._locks: tuple[int, Locks] = -1, ()  # for a generation, the locks to hold
        with _registry:
            for state in self.uses:
                state._claims = (*(c for c in state._claims if c()), weakref.ref(self))
            _generation += 1
        for changer in _claims_of(self.uses, readers=False):
            with changer._lock:  # wait for a run that began before this claim
                pass

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return function(*arguments), run while no other thread uses the values it changes."""
        while True:
            generation, locks = self._locks  # another thread may replace these
            if generation != _generation:
                generation = _generation
                locks = _ordered_locks({self: None, **_claims_of(self.changes)})
                self._locks = generation, locks
            try:  # `suppress` would take longer
                return _run_locked(locks, generation, function, arguments)
            except _Outdated:
                pass


def run_exclusively(states: Sequence[State], function: Callable[[], T], changes: bool) -> T:
    """Return the result of `function`, which reads the values, while no claim changes them.

    changes  whether `function` changes the values: then no claim reads them meanwhile either
    """
    while True:
        generation = _generation
        claims = _claims_of(states, readers=changes)
        with contextlib.suppress(_Outdated):
            return _run_locked((*_ordered_locks(claims), _registry), generation, function, ())


def _claims_of(states: Iterable[State], readers: bool = True) -> dict[Claim, None]:
    """Return the claims that change one of the states, and with `readers` those that read one."""
    pairs = ((claim, state) for state in states for c in state._claims if (claim := c()))
    return {claim: None for claim, state in pairs if readers or state in claim.changes}


_claim_numbers = itertools.count()
_generation = 0  # number of claims so far
# Held while a claim is made and, after the locks of claims, by `run_exclusively`.
_registry = forks.reentrant_lock()


def _ordered_locks(claims: Iterable[Claim]) -> Locks:
    """Return the locks of claims in an order common to all threads, which excludes deadlocks."""
    return tuple(claim._lock for claim in sorted(claims, key=lambda claim: claim._number))


class _Outdated(Exception):
    """A claim was made after the locks were collected."""


def _run_locked(
    locks: Locks, generation: int, function: Callable[..., T], arguments: Iterable[Any]
) -> T:
    """Return function(*arguments), run while this thread holds all locks.

    Raises _Outdated if a claim was made since `generation`.  Each lock has a `with` statement, so
    that an interrupt cannot leave it locked.
    """
    with locks[0]:
        if len(locks) > 1:
            return _run_locked(locks[1:], generation, function, arguments)
        if _generation != generation:
            raise _Outdated
        return function(*arguments)

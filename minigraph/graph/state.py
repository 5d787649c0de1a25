"""The value of a parameter, of which several devices may have a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from minigraph.graph.dtypes import Array
from minigraph.graph.spec import Spec, aligned_empty

HOST = "host"


class Replica(Protocol):
    """An array of a parameter's shape and dtype in the memory of a device."""

    def upload(self, value: Array) -> None:
        """Copy a value from the host's memory."""

    def download(self, into: Array) -> None:
        """Write the value to the host's memory."""


class State:
    """A value with copies on devices; it knows which copies are current.

    Whoever changes a copy says so; the other copies are updated when they are next asked for.
    A copy keeps its address, which compiled programs hold.
    """

    def __init__(self, value: Array) -> None:
        self.spec = Spec(value.shape, value.dtype)
        self._host = aligned_empty(self.spec)
        self._host[...] = value
        self._copies: dict[str, Any] = {}
        self._current = {HOST}

    def read(self) -> Array:
        """Return the value in the host's memory; the caller must not change it."""
        if HOST not in self._current:
            self._copies[min(self._current)].download(self._host)
            self._current.add(HOST)
        return self._host

    def write(self) -> Array:
        """Return the value in the host's memory, for the caller to change."""
        host = self.read()
        self._current = {HOST}
        return host

    def on(self, device: str, make: Callable[[Spec], Replica]) -> Any:
        """Return the current copy on a device; `make` allocates it the first time."""
        copy = self._copies.get(device)
        if copy is None:
            copy = self._copies[device] = make(self.spec)
        if device not in self._current:
            copy.upload(self.read())
            self._current.add(device)
        return copy

    def written(self, device: str) -> None:
        """Note that the copy on a device has been changed."""
        self._current = {device}

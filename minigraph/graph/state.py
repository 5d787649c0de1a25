"""The value of a parameter, which may be in the memory of several devices at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from minigraph.graph.dtypes import Array
from minigraph.graph.spec import Spec, aligned_empty

HOST = "host"


class DeviceCopy(Protocol):
    """An array of a parameter's shape and dtype in the memory of a device."""

    def upload(self, value: Array) -> None:
        """Take over a value from the host."""

    def download(self, into: Array) -> None:
        """Write the value to the host's memory."""


class State:
    """A value with copies on devices, of which it knows those that are current.

    Whoever changes the value says where; the other copies are renewed when they are asked for.
    The host's memory and a device's stay where they are: programs hold their addresses.
    """

    def __init__(self, value: Array) -> None:
        self.spec = Spec(value.shape, value.dtype)
        self._host = aligned_empty(self.spec)
        self._host[...] = value
        self._copies: dict[str, Any] = {}
        self._current = {HOST}

    def read(self) -> Array:
        """Return the value in the host's memory; it is not to be changed."""
        if HOST not in self._current:
            self._copies[min(self._current)].download(self._host)
            self._current.add(HOST)
        return self._host

    def write(self) -> Array:
        """Return the value in the host's memory, where it may then be changed."""
        host = self.read()
        self._current = {HOST}
        return host

    def on(self, device: str, make: Callable[[Spec], DeviceCopy]) -> Any:
        """Return the copy on a device, with the value; `make` makes one where there is none."""
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

"""The table of devices, and opening a device by its name.

A device's module, and the libraries that it needs, are loaded when the device is opened.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from minigraph.arguments import short_repr
from minigraph.distributed import World
from minigraph.errors import DeviceError, hints, install_command
from minigraph.program import Backend


class DeviceRow(NamedTuple):
    """The module and class of a kind of device, and whether its devices have numbers."""

    module: str
    backend: str
    numbered: bool = False


DEVICES = {
    "cpu": DeviceRow("minigraph.devices.cpu.device", "CpuBackend"),
    "cuda": DeviceRow("minigraph.devices.cuda.device", "CudaBackend", numbered=True),
    "reference": DeviceRow("minigraph.devices.reference", "ReferenceBackend"),
}


def check_device(device: str) -> str:
    """Return the device's name; raise DeviceError if this machine does not have the device."""
    kind, number = split(device)
    try:
        _backend(kind).check(number)
    except DeviceError as error:
        raise DeviceError(f"device {device!r} cannot be opened: {error}") from None
    return device


def split(device: str) -> tuple[str, int | None]:
    """Return the kind of a device and its number, if it has one; raise DeviceError if unknown."""
    match = re.fullmatch(r"(\w+)(?::(\d+))?", device) if isinstance(device, str) else None
    kind, number = match.groups() if match else ("", None)
    if kind not in DEVICES or (number and not DEVICES[kind].numbered):
        names = [f'"{kind}"' for kind in DEVICES]
        names += [f'"{kind}:1"' for kind, row in DEVICES.items() if row.numbered]
        *other_names, last_name = sorted(names)
        instead = hints("devices").get(str(device).lower().partition(":")[0])
        raise DeviceError(
            f"there is no device {short_repr(device)}"
            + f" ({instead})" * bool(instead)
            + f"; use {', '.join(other_names)} or {last_name}"
        )
    return kind, int(number) if number else None


def open_backend(
    device: str, values: Mapping[str, Any], on_disk: bool = True, world: World | None = None
) -> Backend:
    """Return the backend for a device, opened with the values of all options.

    Raises DeviceError if the device, its driver or a package is missing, or if the device does not
    support the values of the options `amp` and `precision`.
    """
    kind, number = split(device)
    backend = _backend(kind)(number, values, on_disk, world)
    for option in ("amp", "precision"):
        value = values[option]
        if why := backend.refusal(option, value):
            raise DeviceError(f"{option}={value!r} does not work on device {device!r}: {why}")
    return backend


def _backend(kind: str) -> type[Backend]:
    row = DEVICES[kind]
    try:
        backend: type[Backend] = getattr(importlib.import_module(row.module), row.backend)
    except ImportError as error:
        raise DeviceError(
            f"{kind.upper()} needs packages that are missing ({error}): {install_command(kind)}"
        ) from error
    return backend

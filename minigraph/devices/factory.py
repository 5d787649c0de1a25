"""Opening a device by its name.  The libraries of a GPU are loaded when one is asked for."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from minigraph import options
from minigraph.arguments import shown
from minigraph.autotune.policy import Policy
from minigraph.devices.cpu import CpuBackend
from minigraph.devices.reference import ReferenceBackend
from minigraph.distributed import World
from minigraph.errors import DeviceError
from minigraph.platform.launcher import local_rank
from minigraph.program import Backend
from minigraph.torch_hints import hints


def check_device(device: str) -> str:
    """Return the device's name; DeviceError for one that is not here."""
    try:
        number = ordinal(device)
        if number is not None:
            _cuda().opened(number)
            return device
    except DeviceError as error:
        raise DeviceError(f"device {device!r} cannot be opened: {error}") from None
    if not isinstance(device, str) or device not in ("cpu", "reference"):
        instead = hints("devices").get(str(device).lower().partition(":")[0])
        raise DeviceError(
            f"there is no device {shown(device)}"
            + f" ({instead})" * bool(instead)
            + '; use "cpu", "cuda", "cuda:1" or "reference"'
        )
    return device


def _cuda() -> ModuleType:
    try:
        return importlib.import_module("minigraph.devices.cuda.device")
    except ImportError as error:
        raise DeviceError(
            f"CUDA needs packages that are missing ({error}): pip install 'minigraph[cuda]'"
        ) from error


def ordinal(device: str) -> int | None:
    """Return the number of a CUDA device, or None for another device.

    "cuda" is the first one.  Of the processes that a launcher started on a machine, each has the
    next, as far as there are others: a scheduler may show each process its own device alone.
    """
    found = re.fullmatch(r"cuda(?::(\d+))?", device) if isinstance(device, str) else None
    if not found:
        return None
    rank = local_rank()
    return int(found[1] or (_cuda().usual(rank) if rank else 0))


def policy_of(values: Mapping[str, Any]) -> Policy:
    """Return what options say of algorithms."""
    return Policy(
        values["autotune.workspace_limit"], values["autotune.deterministic"], values["precision"]
    )


def open_backend(
    device: str, values: Mapping[str, Any], on_disk: bool = True, world: World | None = None
) -> Backend:
    """Return the backend for a device.

    on_disk  whether it may keep kernels on disk
    world    the processes whose devices it is to be connected with; all of them call this

    Raises DeviceError where the device, its driver or a package is missing, and where the device
    does not compute in the type of the option `amp`.
    """
    found = _opened(device, values, on_disk, world)
    amp = values["amp"]
    why = "" if amp == "off" else found.why_no_amp(amp)
    if why:
        raise DeviceError(f"amp={amp!r} does not work on device {device!r}: {why}")
    return found


def _opened(device: str, values: Mapping[str, Any], on_disk: bool, world: World | None) -> Backend:
    if device == "reference":
        return ReferenceBackend()
    number = ordinal(device)
    if number is None:
        threads = options.num_threads(values["num_threads"])
        return CpuBackend(threads, values["bulk"], on_disk, values["distributed.timeout"])
    found = _cuda().CudaBackend(
        *(number, values["bulk"], policy_of(values), values["graph_opt.fast_math"], on_disk),
        values["distributed.timeout"],
    )
    if world:
        found.connect(world)
    opened: Backend = found
    return opened

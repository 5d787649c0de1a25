"""Cache files of functions: write what a function has used, and read it back into a process.

Each entry of a file is checked for itself: it holds where its environment is the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minigraph.autotune.measurement import table
from minigraph.cache import KINDS, Entry, differences, file
from minigraph.cache.counters import tuning_counters
from minigraph.errors import CacheError, OptionError, warn_once
from minigraph.program import Backend

TYPES: Mapping[str, tuple[str, ...]] = {
    "onednn": ("onednn",),
    "mkldnn": ("onednn",),
    "cudnn": ("cudnn",),
    "jit": ("jit",),
    "all": KINDS,
}
# Behind the error for a type that people look for.
TENSORRT = (
    '; fused kernels are in "jit", measured choices in "cudnn"; for an engine of TensorRT, '
    'mg.onnx.save(path, step, check="tensorrt") prints the line of trtexec that builds one'
)

Merge = Callable[[Entry, Entry], Entry]
Fields = Mapping[str, str]  # what a file is saved for, by name


@dataclass(frozen=True)
class Loaded:
    """What became of the entries of a file.

    accepted  how many are used from now on
    rejected  (entry, reason) for each of the others
    entries   the accepted measurements by key
    fields    what the file was saved for
    """

    accepted: int
    rejected: list[tuple[str, str]]
    entries: dict[str, Entry] = field(default_factory=dict, repr=False)
    fields: dict[str, str] = field(default_factory=dict, repr=False)


def kinds(type: str) -> tuple[str, ...]:
    """Return the kinds of entries that a name stands for; OptionError if it is none."""
    if type not in TYPES:
        allowed = ", ".join(map(repr, TYPES)) + TENSORRT * (type == "tensorrt")
        raise OptionError(f"there is no cache of type {type!r}; allowed: {allowed}")
    return TYPES[type]


def load_entries(path: file.PathLike, type: str, backend: Backend) -> Loaded:
    """Return a file's entries for a device, and add its kernels to those of the device.

    Raises CacheError if kernels are asked for and other users may have written the file: machine
    code in it would run.
    """
    wanted = kinds(type)
    contents = file.read(path)
    rejected = list(contents.rejected)
    measurements: dict[str, Entry] = {}
    kernels: list[Entry] = []
    for entry in contents.entries:
        if entry.kind not in wanted:
            continue
        why = _why_refused(entry, backend)
        if why:
            rejected.append((f"{entry.kind} {entry.subject}", why))
        elif entry.kind == "jit":
            kernels.append(entry)
        else:
            measurements[entry.key] = entry
    if kernels and contents.unsafe:
        raise CacheError(f"{contents.unsafe}, and machine code is loaded from {path}")
    if kernels:
        backend.keep_kernels(kernels)
    tuning_counters.count("rejected", len(rejected))
    accepted = len(kernels) + len(measurements)
    return Loaded(accepted, rejected, measurements, contents.fields)


def _why_refused(entry: Entry, backend: Backend) -> str:
    """Return why an entry holds elsewhere or makes no sense; "" if it can be used."""
    here, there = backend.environment(entry.kind), dict(entry.environment)
    if not here:
        return f"device {backend.device} has no use for {entry.kind}"
    if why := "; ".join(differences(here, there)):
        return why
    if entry.kind == "jit":
        return "" if entry.blob else "has no machine code"
    measured = table(entry)
    return measured if isinstance(measured, str) else ""


def save_entries(
    path: file.PathLike, type: str, environment: Fields, entries: Sequence[Entry], merge: Merge
) -> None:
    """Write entries to a file, beside those that are there; CacheError if it cannot be written.

    merge  makes one of two entries with the same key
    """
    wanted = kinds(type)
    file.write(path, environment, [entry for entry in entries if entry.kind in wanted], merge)


def load_from_folder(path: Path, environment: Fields, backend: Backend) -> Loaded:
    """Return what a function's file holds for it; warn once about entries that do not fit."""
    if not os.path.isfile(path):  # save_to_folder warns of anything else in its place
        return Loaded(0, [])
    try:
        loaded = load_entries(path, "all", backend)
    except CacheError as error:
        warn_once(f"{error}; it is not used")
        return Loaded(0, [])
    # The first difference explains the others: a change of any field changes the fingerprint.
    reasons = differences(environment, loaded.fields)[:1] if loaded.fields else []
    reasons += [f"{name}: {why}" for name, why in loaded.rejected]
    if reasons:
        more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        warn_once(f"{path} was made elsewhere or is damaged: {reasons[0]}{more}")
    return loaded


def save_to_folder(path: Path, environment: Fields, entries: Sequence[Entry], merge: Merge) -> None:
    """Write a function's file if it lacks something; warn once if it cannot be written.

    merge  makes one of two entries with the same key
    """
    contents = file.read(path)
    present = {entry.key: entry for entry in contents.entries}
    whole = not contents.rejected and contents.fields == environment
    if whole and all(present.get(entry.key) == entry for entry in entries):
        return
    try:
        save_entries(path, "all", environment, entries, merge)
    except CacheError as error:
        text = f"{error}; what was found is not kept there"
        warn_once(text, cause=f"{path.parent} is not written to")

"""Cache files of functions: save a function's measurements and kernels, and load them.

Each entry of a file is checked: it is valid if its environment is that of this process.
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
# Appended to the error for a type that users of other frameworks expect.
TENSORRT = (
    '; fused kernels are in "jit", measured choices in "cudnn"; for an engine of TensorRT, '
    'mg.onnx.save(path, step, check="tensorrt") prints the line of trtexec that builds one'
)

Merge = Callable[[Entry, Entry], Entry]
Fields = Mapping[str, str]  # of the fingerprint of the function that a file is for


@dataclass(frozen=True)
class Loaded:
    """The result of loading a cache file.

    accepted  number of valid entries, which later compiles use
    rejected  (entry, reason) of each invalid one
    entries   the accepted measurements, by key
    fields    of the function's fingerprint
    """

    accepted: int
    rejected: list[tuple[str, str]]
    entries: dict[str, Entry] = field(default_factory=dict, repr=False)
    fields: dict[str, str] = field(default_factory=dict, repr=False)


def kinds(type: str) -> tuple[str, ...]:
    """Return the kinds of entries of a cache type; raise OptionError for an unknown type."""
    if type not in TYPES:
        names = ", ".join(map(repr, TYPES)) + TENSORRT * (type == "tensorrt")
        raise OptionError(f"unknown type of cache {type!r}; allowed: {names}")
    return TYPES[type]


def load_entries(path: file.PathLike, type: str, backend: Backend) -> Loaded:
    """Load a file's entries for a device; its kernels go to the device's cache.

    Raises CacheError if kernels would be loaded and another user could have written the file, as
    its machine code would run.
    """
    selected = kinds(type)
    contents = file.read(path)
    rejected = list(contents.rejected)
    measurements: dict[str, Entry] = {}
    kernels: list[Entry] = []
    for entry in contents.entries:
        if entry.kind not in selected:
            continue
        reason = _refusal(entry, backend)
        if reason:
            rejected.append((f"{entry.kind} {entry.subject}", reason))
        elif entry.kind == "jit":
            kernels.append(entry)
        else:
            measurements[entry.key] = entry
    if kernels and contents.unsafe:
        raise CacheError(f"{contents.unsafe}, so no machine code is loaded from {path}")
    if kernels:
        backend.keep_kernels(kernels)
    tuning_counters.count("rejected", len(rejected))
    accepted = len(kernels) + len(measurements)
    return Loaded(accepted, rejected, measurements, contents.fields)


def _refusal(entry: Entry, backend: Backend) -> str:
    """Return why an entry is invalid for this process; "" if it is valid."""
    current, stored = backend.environment(entry.kind), dict(entry.environment)
    if not current:
        return f"device {backend.device} does not use {entry.kind}"
    if reason := "; ".join(differences(current, stored)):
        return reason
    if entry.kind == "jit":
        return "" if entry.blob else "has no machine code"
    measured = table(entry)
    return measured if isinstance(measured, str) else ""


def save_entries(
    path: file.PathLike, type: str, environment: Fields, entries: Sequence[Entry], merge: Merge
) -> None:
    """Add entries to a file; raise CacheError if it cannot be written.

    merge  merges two entries with the same key
    """
    selected = kinds(type)
    file.write(path, environment, [entry for entry in entries if entry.kind in selected], merge)


def load_from_folder(path: Path, environment: Fields, backend: Backend) -> Loaded:
    """Load a function's own file; warn once about invalid entries."""
    if not os.path.isfile(path):  # save_to_folder warns about a path that is no file
        return Loaded(0, [])
    try:
        loaded = load_entries(path, "all", backend)
    except CacheError as error:
        warn_once(f"{error}; it is not used")
        return Loaded(0, [])
    # The first difference explains the others: each field is part of the fingerprint.
    reasons = differences(environment, loaded.fields)[:1] if loaded.fields else []
    reasons += [f"{name}: {reason}" for name, reason in loaded.rejected]
    if reasons:
        suffix = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        warn_once(f"{path} was made elsewhere or is damaged: {reasons[0]}{suffix}")
    return loaded


def save_to_folder(path: Path, environment: Fields, entries: Sequence[Entry], merge: Merge) -> None:
    """Write a function's own file if it lacks an entry; warn once if it cannot be written.

    merge  merges two entries with the same key
    """
    contents = file.read(path)
    present = {entry.key: entry for entry in contents.entries}
    is_complete = not contents.rejected and contents.fields == environment
    if is_complete and all(present.get(entry.key) == entry for entry in entries):
        return
    try:
        save_entries(path, "all", environment, entries, merge)
    except CacheError as error:
        text = f"{error}; measurements and kernels are not stored there"
        warn_once(text, cause=f"{path.parent} is not written to")

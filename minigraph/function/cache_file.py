"""Cache files of functions: what one has used, to a file, and back into the process.

What a file holds is checked entry by entry: it counts where it was made in the same environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minigraph.autotune.measurement import merge, table
from minigraph.cache import KINDS, Entry, file
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


@dataclass(frozen=True)
class Loaded:
    """What became of the entries of a file.

    accepted  how many are used from now on
    rejected  (entry, reason) of each other one
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
        allowed = ", ".join(map(repr, TYPES))
        raise OptionError(f"there is no cache of type {type!r}; allowed: {allowed}")
    return TYPES[type]


def load(path: str | os.PathLike[str], type: str, backend: Backend) -> Loaded:
    """Return what is in a file for a device; its kernels are kept with those of the device.

    Raises CacheError if kernels are asked for and others may have written the file: they would run.
    """
    wanted = kinds(type)
    contents = file.read(path)
    rejected = list(contents.rejected)
    entries: dict[str, Entry] = {}
    accepted = 0
    for entry in contents.entries:
        if entry.kind not in wanted:
            continue
        why = _why_foreign(entry, backend)
        if not why and entry.kind == "jit":
            unsafe = file.unsafe(path)
            if unsafe:
                raise CacheError(f"{path} {unsafe}, and machine code is loaded from it")
            why = backend.keep_kernels(entry)
        elif not why:
            known = table(entry)
            why = known if isinstance(known, str) else ""
            entries[entry.key] = entry
        if why:
            entries.pop(entry.key, None)
            rejected.append((f"{entry.kind} {entry.subject}", why))
        else:
            accepted += 1
    tuning_counters.count("rejected", len(rejected))
    return Loaded(accepted, rejected, entries, contents.fields)


def _why_foreign(entry: Entry, backend: Backend) -> str:
    """Return which fields of an entry's environment are not those of the device, in words."""
    here, there = backend.environment(entry.kind), dict(entry.environment)
    if not here:
        return f"device {backend.device} has no use for {entry.kind}"
    differ = [
        f"{name} is {there.get(name)!r} there, {here.get(name)!r} here"
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    ]
    return "; ".join(differ)


def save(
    path: str | os.PathLike[str], type: str, fields: Mapping[str, str], entries: Sequence[Entry]
) -> None:
    """Write entries to a file, beside those that are there; CacheError if it cannot be written."""
    wanted = kinds(type)
    file.write(path, fields, [entry for entry in entries if entry.kind in wanted], merge)


def file_of(folder: str | os.PathLike[str], fingerprint: str) -> Path:
    """Return the file of a function in a folder."""
    return Path(folder, f"{fingerprint[-7:]}.cache")


def load_from_folder(path: Path, fields: Mapping[str, str], backend: Backend) -> Loaded:
    """Return what a function's file holds; what is not for it is told in a warning, once."""
    nothing = Loaded(0, [])
    if not os.path.isfile(path):  # what else is in its place is told by who cannot write there
        return nothing
    try:
        found = load(path, "all", backend)
    except CacheError as error:
        warn_once(f"{error}; it is not used")
        return nothing
    differ = [
        f"{name} is {found.fields.get(name)!r} there, {value!r} here"
        for name, value in fields.items()
        if found.fields.get(name) != value
    ]
    reasons = [f"{name}: {why}" for name, why in found.rejected]
    if found.fields and differ:
        reasons.insert(0, differ[0])
    if reasons:
        more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        warn_once(f"{path} was made elsewhere or is damaged: {reasons[0]}{more}")
    return found


def save_to_folder(path: Path, fields: Mapping[str, str], entries: Sequence[Entry]) -> None:
    """Write a function's file if it lacks something; a warning, once, if it cannot be written."""
    contents = file.read(path)
    there = {entry.key: entry.checksum for entry in contents.entries}
    whole = not contents.rejected and contents.fields == fields
    if whole and all(there.get(e.key) == e.checksum for e in entries):
        return
    try:
        save(path, "all", fields, entries)
    except CacheError as error:
        warn_once(f"{error}; what was found is not kept there")
